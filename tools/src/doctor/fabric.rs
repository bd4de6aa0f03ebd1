//! libfabric: whether it is there and new enough, what it offers, and what EFA needs.

use super::finding::Finding;
use linerate::unstable::ofi::{self, Candidate};

const CHECK: &str = "libfabric";
const INSTALL: &str = "install AWS's EFA software (efa_installer.sh), or name its library in LINERATE_FABRIC_LIB; then fi_info -p efa";

/// Everything about libfabric on this host.
pub fn examine() -> Vec<Finding> {
    let listed = ofi::list().map_err(|error| error.to_string());
    let is_named = std::env::var_os("LINERATE_FABRIC_LIB").is_some();
    judge(listed, ofi::has_efa(), is_named)
}

fn judge(
    listed: Result<(String, Vec<Candidate>), String>,
    has_efa: bool,
    is_named: bool,
) -> Vec<Finding> {
    let (title, candidates) = match listed {
        Ok(found) => found,
        Err(why) if has_efa || is_named => return vec![Finding::fault(CHECK, why, INSTALL)],
        Err(_) => {
            let text = "it is missing; no EFA device is here to need it";
            return vec![Finding::note(CHECK, text, "apt-get install libfabric1")];
        }
    };
    let usable = candidates.iter().filter(|one| one.why_not.is_none());
    let names: Vec<&str> = usable.map(|one| one.provider.as_str()).collect();
    let text = format!("{title} offers {}", names.join(", "));
    let mut findings = vec![match names.is_empty() {
        true => Finding::note(CHECK, format!("{title} offers nothing"), "fi_info -v"),
        false => Finding::good(CHECK, text),
    }];
    if has_efa {
        findings.push(judge_efa(
            candidates.iter().find(|one| one.provider == "efa"),
        ));
        findings.push(Finding::note(
            CHECK,
            "EFA reaches only instances of a security group that lets itself in and out, which no host can see",
            "aws ec2 authorize-security-group-ingress --group-id G --protocol -1 --source-group G; the same with -egress",
        ));
    }
    findings
}

fn judge_efa(efa: Option<&Candidate>) -> Finding {
    match efa.map(|efa| (&efa.why_not, efa.domains.join(", "))) {
        Some((None, domains)) => Finding::good(CHECK, format!("EFA: {domains}")),
        Some((Some(why), _)) => Finding::fault(CHECK, format!("EFA: {why}"), INSTALL),
        None => Finding::fault(
            CHECK,
            "there is an EFA device, and libfabric does not offer it: it is not built for EFA, or may not open /dev/infiniband/uverbs* or lock memory",
            INSTALL,
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::super::finding::Level;
    use super::*;

    fn candidate(provider: &str, why_not: Option<&str>) -> Candidate {
        Candidate {
            provider: provider.into(),
            domains: vec!["rdmap0s6-rdm".into()],
            why_not: why_not.map(String::from),
            is_software: provider != "efa",
        }
    }

    fn levels(listed: Result<Vec<Candidate>, &str>, has_efa: bool) -> Vec<Level> {
        let listed = listed.map(|all| ("libfabric 1.22".to_string(), all));
        let findings = judge(listed.map_err(String::from), has_efa, false);
        for finding in &findings {
            assert_eq!(
                finding.mend.is_none(),
                finding.level == Level::Good,
                "{finding:?}"
            );
        }
        findings.iter().map(|finding| finding.level).collect()
    }

    #[test]
    fn what_efa_lacks_is_a_fault_only_where_there_is_efa() {
        let (tcp, efa) = (candidate("tcp;ofi_rxm", None), candidate("efa", None));
        assert_eq!(levels(Err("no file"), true), [Level::Fault]);
        assert_eq!(levels(Err("no file"), false), [Level::Note]);
        assert_eq!(levels(Ok(vec![]), false), [Level::Note]);
        let named = judge(Err("no file".into()), false, true);
        assert_eq!(named[0].level, Level::Fault);
        assert_eq!(levels(Ok(vec![tcp.clone()]), false), [Level::Good]);
        let without = levels(Ok(vec![tcp.clone()]), true);
        assert_eq!(without, [Level::Good, Level::Fault, Level::Note]);
        let old = candidate("efa", Some("libfabric is 1.17"));
        let with_old = levels(Ok(vec![tcp.clone(), old]), true);
        assert_eq!(with_old, [Level::Good, Level::Fault, Level::Note]);
        let with = levels(Ok(vec![efa, tcp]), true);
        assert_eq!(with, [Level::Good, Level::Good, Level::Note]);
    }
}
