//! Lists of hosts as Slurm writes them: `login,gpu[007-012,20]`. Pure.

/// The first host of a list; `None` if there is none.
pub(super) fn first_host(list: &str) -> Option<String> {
    let mut host = String::new();
    let mut rest = list.trim();
    // Several brackets may follow one another: rack[1-2]node[3-4].
    loop {
        let end = rest.find(['[', ',']).unwrap_or(rest.len());
        host.push_str(&rest[..end]);
        rest = &rest[end..];
        let Some(inside) = rest.strip_prefix('[') else {
            break;
        };
        let (ranges, behind) = inside.split_once(']')?;
        let first = ranges.split(['-', ',']).next()?;
        if first.is_empty() {
            return None;
        }
        host.push_str(first);
        rest = behind;
    }
    let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_' | ':');
    (!host.is_empty() && host.chars().all(is_name)).then_some(host)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_host_of_a_list_is_found() {
        for (list, host) in [
            ("node1", "node1"),
            ("node1,node2", "node1"),
            ("gpu[007-012,20],login", "gpu007"),
            ("gpu[7,9-10]", "gpu7"),
            ("rack[1-2]node[03-04]", "rack1node03"),
            ("a[1-2].site.org,b", "a1.site.org"),
            (" n[5] ", "n5"),
        ] {
            assert_eq!(first_host(list).as_deref(), Some(host), "{list}");
        }
        for bad in ["", ",", "[", "n[", "n[]", "n[1", "n;rm", "n]"] {
            assert_eq!(first_host(bad), None, "{bad}");
        }
    }
}
