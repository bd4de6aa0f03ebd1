//! Two hosts: network namespaces of this machine, joined by a pair of interfaces. They need root
//! and the `ip` command.

use super::within;
use std::ffi::OsStr;
use std::process::Command;

/// Two namespaces, of which the interfaces `l0` (10.77.0.1) and `l1` (10.77.0.2) reach each other.
pub struct Hosts {
    /// As `ip netns` knows them.
    pub names: [String; 2],
}

/// What every rank of a job on both hosts is told.
pub const COMMON: [(&str, &str); 3] = [
    ("LINERATE_RENDEZVOUS", "tcp://10.77.0.1:29555"),
    ("LINERATE_SECRET", "0123456789abcdef"),
    ("LINERATE_DEBUG", "info"),
];

fn ip(line: &str) -> Result<(), String> {
    let output = Command::new("ip").args(line.split_whitespace()).output();
    let output = output.map_err(|error| format!("ip {line}: {error}"))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(format!(
            "ip {line}: {}",
            String::from_utf8_lossy(&output.stderr)
        )),
    }
}

impl Hosts {
    /// `None`, and why on standard output, where namespaces cannot be made.
    pub fn new(test: &str) -> Option<Hosts> {
        let names = [0, 1].map(|host| format!("lr-{}-{test}-{host}", std::process::id()));
        let hosts = Hosts { names };
        let [a, b] = &hosts.names;
        let made = ip(&format!("netns add {a}"));
        // Entering one mounts, which not every root may (a changed root that is no mount point).
        if let Err(why) = made.and_then(|()| ip(&format!("-n {a} link set lo up"))) {
            println!("skipped: no network namespaces here: {why}");
            return None;
        }
        let mut lines = vec![
            format!("netns add {b}"),
            format!("link add l0 netns {a} type veth peer name l1 netns {b}"),
        ];
        for (host, name) in hosts.names.iter().enumerate() {
            lines.push(format!(
                "-n {name} addr add 10.77.0.{}/24 dev l{host}",
                host + 1
            ));
            lines.push(format!("-n {name} link set lo up"));
            lines.push(format!("-n {name} link set l{host} up"));
        }
        lines.iter().for_each(|line| ip(line).unwrap());
        Some(hosts)
    }

    /// `up` or `down`, of the link between them.
    pub fn set_link(&self, state: &str) {
        ip(&format!("-n {} link set l1 {state}", self.names[1])).unwrap();
    }

    /// From now on the link ends in two more hosts, which have the addresses of these and refuse
    /// every connection, as a firewall with REJECT between the two would.
    pub fn refuse(&self) {
        let [_, b] = &self.names;
        let [c, d] = &self.fences();
        let lines = [
            format!("netns add {c}"),
            format!("netns add {d}"),
            // It keeps its hardware address, so that the first host sees no other neighbour.
            format!("-n {b} link set l1 netns {c}"),
            format!("-n {c} addr add 10.77.0.2/24 dev l1"),
            format!("-n {c} link set l1 up"),
            format!("link add l1 netns {b} type veth peer name l0 netns {d}"),
            format!("-n {d} addr add 10.77.0.1/24 dev l0"),
            format!("-n {d} link set l0 up"),
            format!("-n {b} addr add 10.77.0.2/24 dev l1"),
            format!("-n {b} link set l1 up"),
        ];
        lines.iter().for_each(|line| ip(line).unwrap());
    }

    fn fences(&self) -> [String; 2] {
        [0, 1].map(|host| format!("{}-fence", self.names[host]))
    }

    /// A command that becomes this one inside a host, with nothing in its environment but the
    /// search path and what was set for it.
    pub fn inside(&self, host: usize, program: &Command) -> Command {
        let set =
            |(name, value): (&OsStr, Option<&OsStr>)| Some((name.to_owned(), value?.to_owned()));
        let set: Vec<_> = program.get_envs().filter_map(set).collect();
        let mut inside = within(&["ip", "netns", "exec", &self.names[host]], program);
        inside
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap());
        inside.envs(set);
        inside
    }
}

/// The place of a rank among `ranks`, half of them on each host, as launchers tell it.
pub fn place(rank: usize, ranks: usize) -> [(&'static str, String); 4] {
    [
        ("WORLD_SIZE", ranks.to_string()),
        ("RANK", rank.to_string()),
        ("LOCAL_RANK", (rank % (ranks / 2)).to_string()),
        ("LOCAL_WORLD_SIZE", (ranks / 2).to_string()),
    ]
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for name in self.names.iter().chain(&self.fences()) {
            // Whatever still runs there ends with the test's processes.
            let _ = ip(&format!("netns del {name}"));
        }
    }
}
