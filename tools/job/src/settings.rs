//! What the commands that run ranks have in common: settings from the environment and flags, number
//! of ranks, memory. Mistakes in them are found here, before a rank is started.

use linerate::unstable::bootstrap::{Launched, launched_from_env};
use linerate::unstable::limits;
use linerate::{Collective, Communicator, Config, Progress, collective, unstable};

/// The settings of `LINERATE_*` variables; an error names the variable.
pub fn from_environment() -> Result<Config, String> {
    Config::from_env()
        .map_err(|error| error.to_string())
        .and_then(check_names)
}

/// Joins the ranks that a launcher or this command has started. Calls make progress, unless
/// `LINERATE_PROGRESS` says otherwise. A thread for it then runs when this returns.
pub fn join(mut config: Config) -> linerate::Result<Communicator> {
    if std::env::var_os("LINERATE_PROGRESS").is_none_or(|text| text.is_empty()) {
        config.progress = Progress::Inline;
    }
    let communicator = Communicator::from_env_with(config)?;
    // A blocking call would not begin the thread.
    communicator.start_barrier()?.wait()?;
    Ok(communicator)
}

/// [`Config`] takes any text as a name. Here names must be known.
fn check_names(mut config: Config) -> Result<Config, String> {
    if config.transport.is_empty() {
        config.transport = Config::default().transport;
    }
    check_transport("LINERATE_TRANSPORT", &config.transport)?;
    if let Some(name) = &config.algorithm {
        // One name for all collectives may exist for some of them only.
        let is_known = Collective::ALL
            .into_iter()
            .any(|c| collective::find(c, name).is_ok());
        if !is_known {
            let error = collective::find(Collective::AllReduce, name).err();
            let text = error.map(|e| e.to_string()).unwrap_or_default();
            return Err(format!("LINERATE_ALGO: {text}; nor has any other"));
        }
    }
    Ok(config)
}

/// What torchrun, `linerate launch`, mpirun or srun say of this process, if one of them has started
/// it.
pub fn launched() -> Option<Launched> {
    launched_from_env(|name| std::env::var(name).ok())
}

/// The rank that a launcher has given this process, for texts.
pub fn launched_rank() -> Option<String> {
    Some(launched()?.rank.unwrap_or_else(|| "?".into()))
}

/// Ranks on this host, if a launcher says.
pub fn local_world_size() -> Option<u32> {
    launched()?.local_ranks?.parse().ok()
}

/// Refuses the name of no transport. A transport with a known name may still be unavailable.
/// `source`: where the name stands, for the error.
pub fn check_transport(source: &str, name: &str) -> Result<(), String> {
    unstable::transport::check_name(name).map_err(|text| format!("{source}: {text}"))
}

/// Why a transport with a known name cannot be used; `None` if it can.
pub fn unavailable_reason(name: &str) -> Option<String> {
    const ELSE: &str = "--transport shm or tcp joins the ranks of this host";
    let (kind, detail) = name.split_once(':').unwrap_or((name, ""));
    if kind == "router" {
        return unavailable_reason(detail);
    }
    let error = match kind {
        "verbs" => unstable::verbs::check(detail).err(),
        "ofi" => unstable::ofi::check(detail).err(),
        _ => None,
    };
    error.map(|error| format!("{error}; {ELSE}"))
}

/// The number of ranks, if a launcher has started this process.
pub fn launched_ranks() -> Result<Option<u32>, String> {
    let Some(launched) = launched() else {
        return Ok(None);
    };
    let (name, text) = launched.ranks;
    match text.parse() {
        Ok(ranks) if (1..=limits::RANKS_MAX).contains(&ranks) => Ok(Some(ranks)),
        _ => Err(format!(
            "{name} is '{text}': a number of ranks from 1 to {}, as launchers set it",
            limits::RANKS_MAX
        )),
    }
}

/// The number of ranks; 2 unless the flag or a launcher says otherwise.
pub fn check_ranks(asked: Option<u32>, launched: Option<u32>) -> Result<u32, String> {
    let ranks = match (asked, launched) {
        (Some(asked), Some(launched)) if asked != launched => {
            return Err(format!(
                "--ranks is {asked}, but a launcher has started {launched} (WORLD_SIZE or its own variable): leave --ranks away"
            ));
        }
        (_, Some(launched)) => launched,
        (asked, None) => asked.unwrap_or(2),
    };
    if ranks == 0 || ranks > limits::RANKS_MAX {
        return Err(format!(
            "--ranks is {ranks}: from 1 to {}",
            limits::RANKS_MAX
        ));
    }
    Ok(ranks)
}

/// Refuses a need of memory for which the kernel would kill a process. A sixteenth is left to page
/// tables and other processes.
pub fn check_memory(what: &str, needed: u64, available: u64, advice: &str) -> Result<(), String> {
    let usable = available - available / 16;
    if needed <= usable {
        return Ok(());
    }
    Err(format!(
        "{what} needs {} MiB, and {} MiB can be used (15/16 of MemAvailable, or of what the control group has left): {advice}",
        needed.div_ceil(1 << 20),
        usable >> 20
    ))
}

/// A size with K, M, G or T. One in T is read so that its error can name a limit.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let in_gigabytes = |number: &str| linerate::unstable::config::parse_size(&format!("{number}G"));
    let bytes = match text.strip_suffix(['T', 't']) {
        Some(number) => in_gigabytes(number).map(|bytes| bytes.checked_mul(1024)),
        None => linerate::unstable::config::parse_size(text).map(Some),
    };
    bytes
        .ok()
        .flatten()
        .ok_or_else(|| "a whole number with an optional K, M, G or T (binary), such as 64K".into())
}

/// A number above 0.
pub fn parse_positive(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if value > 0.0 && value.is_finite() => Ok(value),
        _ => Err(format!("'{text}' is not a number above 0")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transports_that_are_not_here_say_so() {
        for name in ["verbs:nothing0", "ofi:nosuch"] {
            let text = unavailable_reason(name).unwrap();
            assert!(text.contains("unavailable"), "{text}");
            assert!(check_transport("--transport", name).is_ok());
        }
        assert!(check_transport("--transport", "verbs:mlx5_0:1,mlx5_1").is_ok());
        for name in ["shm", "tcp", "auto", "sim"] {
            assert!(unavailable_reason(name).is_none(), "{name}");
        }
    }

    #[test]
    fn names_in_the_environment_must_mean_something() {
        let with = |name: &str, value: &str| {
            let lookup = |asked: &str| (asked == name).then(|| value.to_string());
            check_names(Config::from_lookup(lookup).unwrap())
        };
        let text = with("LINERATE_ALGO", "nonsense").unwrap_err();
        assert!(
            text.contains("LINERATE_ALGO") && text.contains("ring"),
            "{text}"
        );
        let text = with("LINERATE_TRANSPORT", "nonsense").unwrap_err();
        assert!(text.contains("LINERATE_TRANSPORT"), "{text}");
        assert_eq!(with("LINERATE_TRANSPORT", "").unwrap().transport, "auto");
        // Only barriers have this algorithm.
        assert!(with("LINERATE_ALGO", "dissemination").is_ok());
    }

    #[test]
    fn memory_that_is_not_there_is_refused_with_the_limit() {
        assert!(check_memory("it", 15 << 30, 16 << 30, "less").is_ok());
        let text = check_memory("it", (15 << 30) + 1, 16 << 30, "less").unwrap_err();
        assert!(
            text.contains("needs 15361 MiB") && text.contains("15360 MiB"),
            "{text}"
        );
        assert!(check_memory("it", u64::MAX, 0, "less").is_err());
    }

    #[test]
    fn sizes_have_binary_units() {
        assert_eq!(parse_size("64K"), Ok(64 << 10));
        assert_eq!(parse_size("1T"), Ok(1 << 40));
        for text in ["T", "1.5K", "-8", "99999999T", "1KT", ""] {
            assert!(parse_size(text).unwrap_err().contains("such as"), "{text}");
        }
    }
}
