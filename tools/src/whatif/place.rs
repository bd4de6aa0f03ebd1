//! Where a point of `--validate` is measured: on this host, or on two hosts that are network
//! namespaces of it, with a link that the kernel limits.

use linerate_job::child;
use serde_json::Value;
use std::process::{Child, Command, Stdio};

/// What both ends of the limited link are told: addresses of a network for documentation.
const ADDRESSES: [&str; 2] = ["192.0.2.1", "192.0.2.2"];
const RENDEZVOUS: &str = "tcp://192.0.2.1:29555";
/// Bytes that the kernel sends at once, and how long others may wait.
const BURST: &str = "burst 256k latency 50ms";
/// The kernel's limit counts whole frames, and linerate's counts what TCP carries in them: of 1,514
/// bytes 1,448.
const FRAME_BYTES: f64 = 1514.0;
const CARRIED_BYTES: f64 = 1448.0;

/// Ranks and the network between them.
pub struct Place {
    /// `tcp`, `shm`, or `tcp tbf`.
    pub transport: &'static str,
    pub ranks: u32,
    /// What a rank may send at most.
    pub gbit: f64,
    /// The hosts of `tcp tbf`.
    pub hosts: Option<Hosts>,
}

impl Place {
    /// Runs this command there and gives its JSON document.
    pub fn start(&self, words: &[String]) -> Result<Value, String> {
        let Some(hosts) = &self.hosts else {
            return child::run(words, self.transport, self.ranks, self.gbit);
        };
        let shown = format!("linerate {}", words.join(" "));
        let failed = |cause: &dyn std::fmt::Display| format!("{shown}: {cause}");
        let program = std::env::current_exe().map_err(|cause| failed(&cause))?;
        let start = |rank| {
            let mut command = hosts.inside(rank);
            command.arg(&program).args(words);
            command.args(["--transport", "tcp", "--json", "-"]).spawn()
        };
        let mut first = start(0).map_err(|cause| failed(&cause))?;
        let mut second = match start(1) {
            Ok(second) => second,
            Err(cause) => {
                kill(&mut first);
                return Err(failed(&cause));
            }
        };
        let output = first.wait_with_output();
        end(&mut second);
        let output = output.map_err(|cause| failed(&cause))?;
        if !output.status.success() {
            return Err(failed(&String::from_utf8_lossy(&output.stderr).trim()));
        }
        serde_json::from_slice(&output.stdout).map_err(|cause| failed(&cause))
    }
}

/// The second rank ends with the first one.
fn end(rank: &mut Child) {
    for _ in 0..100 {
        if !matches!(rank.try_wait(), Ok(None)) {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    kill(rank);
}

fn kill(rank: &mut Child) {
    // It may have ended by itself.
    let _ = rank.kill();
    let _ = rank.wait();
}

/// Two network namespaces whose interfaces carry this many bits per second of a connection's bytes:
/// the kernel's token bucket filter limits them.
pub struct Hosts {
    names: [String; 2],
}

impl Hosts {
    /// Needs root, and the commands `ip` and `tc`; the error says what was missing.
    pub fn new(gbit: f64) -> Result<Hosts, String> {
        let names = [0, 1].map(|host| format!("linerate-{}-{host}", std::process::id()));
        let [a, b] = names.clone();
        let rate = (gbit * 1e9 * FRAME_BYTES / CARRIED_BYTES) as u64;
        // From here on both are removed when this is dropped.
        let hosts = Hosts { names };
        command("ip", &format!("netns add {a}"))?;
        command("ip", &format!("netns add {b}"))?;
        let link = format!("link add l0 netns {a} type veth peer name l1 netns {b}");
        command("ip", &link)?;
        for (host, name) in hosts.names.iter().enumerate() {
            let address = ADDRESSES[host];
            command(
                "ip",
                &format!("-n {name} addr add {address}/24 dev l{host}"),
            )?;
            command("ip", &format!("-n {name} link set lo up"))?;
            command("ip", &format!("-n {name} link set l{host} up"))?;
            let limit = format!("qdisc add dev l{host} root tbf rate {rate}bit {BURST}");
            command("ip", &format!("netns exec {name} tc {limit}"))?;
        }
        Ok(hosts)
    }

    /// What runs a command as this rank, on its host.
    fn inside(&self, rank: usize) -> Command {
        let mut command = Command::new("ip");
        command
            .args(["netns", "exec", &self.names[rank]])
            .env_remove("LINERATE_TCP_PACE")
            .env("LINERATE_RENDEZVOUS", RENDEZVOUS)
            .env("LINERATE_SECRET", "0123456789abcdef")
            .env("WORLD_SIZE", "2")
            .env("RANK", rank.to_string())
            .env("LOCAL_RANK", "0")
            .env("LOCAL_WORLD_SIZE", "1")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(match rank {
                0 => Stdio::piped(),
                _ => Stdio::null(),
            });
        command
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for name in &self.names {
            // One that was not made is no loss.
            let _ = command("ip", &format!("netns del {name}"));
        }
    }
}

fn command(name: &str, line: &str) -> Result<(), String> {
    let output = Command::new(name).args(line.split(' ')).output();
    let output = output.map_err(|cause| format!("{name} {line}: {cause}"))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(format!(
            "{name} {line}: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        )),
    }
}
