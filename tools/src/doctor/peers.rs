//! Paths to other hosts: whether they can be reached, how large packets may be, and how far their
//! clocks are off.
//!
//! A port without a listener answers, too: the host is up and no firewall drops packets. Silence
//! means a firewall, or no host.

use super::finding::Finding;
use super::network::{self, Interface};
use super::serve::{self, Answer};
use crate::system;
use socket2::SockRef;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

/// Questions for the time; the fastest answer counts.
const QUESTIONS: usize = 8;
const LINE_BYTES_MAX: u64 = 4096;
/// The longest headers: IPv6, and TCP with every option. A segment is smaller than its packet by
/// this at most.
const HEADERS_MAX: u32 = 40 + 60;
/// Differences between clocks that make logs hard, or impossible, to read side by side.
const SKEW_WARNING: Duration = Duration::from_millis(10);
const SKEW_FAULT: Duration = Duration::from_secs(1);

/// All peers, one after the other.
pub fn examine(peers: &[String], port: u16, timeout: Duration) -> Vec<Finding> {
    // `network.rs` reports what is wrong with them.
    let interfaces = network::interfaces().unwrap_or_default();
    let of = |peer: &String| examine_peer(peer, port, timeout, &interfaces);
    peers.iter().flat_map(of).collect()
}

fn examine_peer(
    peer: &str,
    port: u16,
    timeout: Duration,
    interfaces: &[Interface],
) -> Vec<Finding> {
    let place = match resolve(peer, port) {
        Ok(place) => place,
        Err(text) => {
            let mend = format!("getent hosts {peer}; then a line in /etc/hosts, or its address");
            return vec![Finding::fault("peer", text, mend)];
        }
    };
    let path = match interface_to(place) {
        Some(name) => format!("{peer} ({place}, over {name})"),
        None => format!("{peer} ({place})"),
    };
    let stream = match TcpStream::connect_timeout(&place, timeout) {
        Ok(stream) => stream,
        Err(cause) => {
            return vec![judge_failure(
                &path,
                place,
                cause.kind(),
                &cause.to_string(),
            )];
        }
    };
    let mut findings = vec![Finding::good("peer", format!("{path} answers"))];
    let segment = SockRef::from(&stream).tcp_mss().ok();
    let mtu = interface_to(place)
        .and_then(|name| interfaces.iter().find(|i| i.name == name))
        .map(|i| i.mtu);
    findings.extend(judge_path(&path, segment, mtu));
    match ask(stream, timeout) {
        Ok((answer, skew_ns, trip)) => {
            findings.push(judge_skew(&path, skew_ns, trip));
            if answer.version != env!("CARGO_PKG_VERSION") {
                findings.push(judge_version(&path, &answer.version));
            }
            let free = SocketAddr::new(place.ip(), answer.free_port);
            findings.push(judge_free_port(
                &path,
                free,
                TcpStream::connect_timeout(&free, timeout).err(),
            ));
        }
        Err(text) => findings.push(Finding::note(
            "peer",
            format!("{path} is no doctor: {text}; its clock and its free ports are unknown"),
            "linerate doctor --serve, there",
        )),
    }
    findings
}

fn resolve(peer: &str, port: u16) -> Result<SocketAddr, String> {
    let first = |found: std::io::Result<std::vec::IntoIter<SocketAddr>>| {
        found
            .map_err(|cause| format!("'{peer}' is no host: {cause}"))?
            .next()
            .ok_or_else(|| format!("'{peer}' has no address"))
    };
    // An IPv6 address without a port has colons, too.
    if let Ok(ip) = peer.parse::<IpAddr>() {
        return Ok(SocketAddr::new(ip, port));
    }
    match peer.contains(':') {
        true => first(peer.to_socket_addrs()),
        false => first((peer, port).to_socket_addrs()),
    }
}

fn interface_to(place: SocketAddr) -> Option<String> {
    match place.ip() {
        ip if ip.is_loopback() => Some("lo".into()),
        IpAddr::V4(ip) => network::route(&system::read("/proc/net/route")?, ip),
        IpAddr::V6(_) => None,
    }
}

fn judge_failure(path: &str, place: SocketAddr, kind: ErrorKind, cause: &str) -> Finding {
    let port = place.port();
    match kind {
        ErrorKind::ConnectionRefused => Finding::note(
            "peer",
            format!(
                "{path} can be reached; nobody listens there, so its clock and its free ports are unknown"
            ),
            "linerate doctor --serve, there",
        ),
        ErrorKind::TimedOut | ErrorKind::WouldBlock => Finding::fault(
            "peer",
            format!("{path} does not answer: a firewall drops the packets, or no such host is up"),
            format!(
                "there: iptables -I INPUT -p tcp --dport {port} -j ACCEPT (clouds: the security group); here: ip route get {}",
                place.ip()
            ),
        ),
        ErrorKind::NetworkUnreachable | ErrorKind::HostUnreachable => Finding::fault(
            "peer",
            format!("{path} cannot be reached: {cause}"),
            format!(
                "ip route get {}; ip route add NETWORK via GATEWAY",
                place.ip()
            ),
        ),
        _ => Finding::fault(
            "peer",
            format!("{path}: {cause}"),
            format!(
                "iptables -L -n, here and there; ip route get {}",
                place.ip()
            ),
        ),
    }
}

/// Compares what a segment holds with what the interface here could send. `None`: nothing is known.
fn judge_path(path: &str, segment: Option<u32>, mtu: Option<u32>) -> Option<Finding> {
    let (segment, mtu) = (segment?, mtu?);
    // Loopback has a larger MTU than any network, and no path that could be narrower.
    let is_narrow = segment + HEADERS_MAX < mtu && mtu < u32::from(u16::MAX);
    Some(match is_narrow {
        true => Finding::fault(
            "path",
            format!(
                "{path}: segments of {segment} bytes although packets of {mtu} leave here: the other side, or something between, takes less"
            ),
            format!(
                "the same mtu along the path: ip link set dev NAME mtu {mtu} there, or mtu {} here",
                segment + 40
            ),
        ),
        false => Finding::good(
            "path",
            format!("{path}: segments of {segment} bytes, packets of {mtu}"),
        ),
    })
}

/// Asks for the time: the answer, how far the clock there is ahead in ns, and how long the fastest
/// answer took.
fn ask(stream: TcpStream, timeout: Duration) -> Result<(Answer, i128, Duration), String> {
    let text = |cause: std::io::Error| cause.to_string();
    stream.set_read_timeout(Some(timeout)).map_err(text)?;
    stream.set_nodelay(true).map_err(text)?;
    let mut reader = BufReader::new(stream);
    let mut best: Option<(Answer, i128, Duration)> = None;
    for _ in 0..QUESTIONS {
        let (before_ns, started) = (serve::unix_ns(), Instant::now());
        reader.get_ref().write_all(b"time?\n").map_err(text)?;
        let mut line = Vec::new();
        (&mut reader)
            .take(LINE_BYTES_MAX)
            .read_until(b'\n', &mut line)
            .map_err(text)?;
        let trip = started.elapsed();
        let answer: Answer = serde_json::from_slice(&line)
            .map_err(|cause| format!("it answers something else ({cause})"))?;
        let middle_ns = i128::from(before_ns) + trip.as_nanos() as i128 / 2;
        let ahead_ns = i128::from(answer.unix_ns) - middle_ns;
        if best.as_ref().is_none_or(|(_, _, fastest)| trip < *fastest) {
            best = Some((answer, ahead_ns, trip));
        }
    }
    best.ok_or_else(|| "it has not answered".into())
}

/// A difference below half the round trip cannot be told from none.
fn judge_skew(path: &str, ahead_ns: i128, trip: Duration) -> Finding {
    let skew = Duration::from_nanos(u64::try_from(ahead_ns.abs()).unwrap_or(u64::MAX));
    let certain = skew.saturating_sub(trip / 2);
    let text = format!(
        "{path}: {:.3} ms {} this one (known to {:.3} ms)",
        skew.as_secs_f64() * 1e3,
        if ahead_ns < 0 { "behind" } else { "ahead of" },
        trip.as_secs_f64() * 5e2
    );
    let mend = "chronyc makestep on both (apt-get install chrony)";
    match certain {
        c if c > SKEW_FAULT => Finding::fault("clock", text, mend),
        c if c > SKEW_WARNING => Finding::warning("clock", text, mend),
        _ => Finding::good("clock", text),
    }
}

fn judge_version(path: &str, version: &str) -> Finding {
    let own = env!("CARGO_PKG_VERSION");
    Finding::fault(
        "version",
        format!("{path} has linerate {version}, this host {own}: ranks of one job need the same"),
        "the same build on all hosts",
    )
}

fn judge_free_port(path: &str, free: SocketAddr, refused: Option<std::io::Error>) -> Finding {
    let port = free.port();
    match refused {
        None => Finding::good(
            "ports",
            format!("{path}: free ports can be reached ({port})"),
        ),
        Some(cause) => Finding::fault(
            "ports",
            format!(
                "{path} answers, but not on a free port ({port}: {cause}): ranks listen on free ports"
            ),
            "there: iptables -I INPUT -p tcp --dport 32768:60999 -s NETWORK -j ACCEPT (the range is sysctl net.ipv4.ip_local_port_range; clouds: the security group)",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::super::finding::Level;
    use super::*;

    fn place() -> SocketAddr {
        "192.0.2.1:18516".parse().unwrap()
    }

    #[test]
    fn silence_is_a_fault_and_a_refusal_is_none() {
        let judge = |kind| judge_failure("b", place(), kind, "why");
        assert_eq!(judge(ErrorKind::ConnectionRefused).level, Level::Note);
        let silent = judge(ErrorKind::TimedOut);
        assert_eq!(silent.level, Level::Fault);
        assert!(silent.mend.unwrap().contains("--dport 18516"));
        assert!(
            judge(ErrorKind::HostUnreachable)
                .mend
                .unwrap()
                .contains("ip route")
        );
        assert_eq!(judge(ErrorKind::Other).level, Level::Fault);
    }

    #[test]
    fn a_path_narrower_than_its_interface_is_a_fault() {
        let level = |segment, mtu| judge_path("b", Some(segment), Some(mtu)).unwrap().level;
        assert_eq!(level(1448, 1500), Level::Good);
        assert_eq!(level(1428, 1500), Level::Good);
        assert_eq!(level(1348, 9000), Level::Fault);
        assert_eq!(level(536, 1500), Level::Fault);
        assert_eq!(level(32_768, 65_536), Level::Good);
        assert_eq!(judge_path("b", None, Some(1500)), None);
    }

    #[test]
    fn clocks_are_compared_as_far_as_the_network_allows() {
        let level = |ahead_ms: i128, trip_ms| {
            judge_skew("b", ahead_ms * 1_000_000, Duration::from_millis(trip_ms)).level
        };
        assert_eq!(level(1, 1), Level::Good);
        assert_eq!(level(-50, 1), Level::Warning);
        assert_eq!(level(-50, 100), Level::Good);
        assert_eq!(level(5000, 1), Level::Fault);
        let text = judge_skew("b", -50_000_000, Duration::ZERO).text;
        assert!(text.contains("50.000 ms behind"), "{text}");
    }

    #[test]
    fn hosts_have_the_usual_port_unless_they_name_one() {
        let resolved = |peer: &str| resolve(peer, 7).unwrap().to_string();
        assert_eq!(resolved("127.0.0.1"), "127.0.0.1:7");
        assert_eq!(resolved("127.0.0.1:9"), "127.0.0.1:9");
        assert_eq!(resolved("::1"), "[::1]:7");
        assert_eq!(resolved("[::1]:9"), "[::1]:9");
        let text = resolve("no host", 1).unwrap_err();
        assert!(text.contains("'no host' is no host"), "{text}");
    }
}
