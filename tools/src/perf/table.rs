//! The table, as perftest prints it (github.com/linux-rdma/perftest, `src/perftest_resources.h`).
//! Pure.

use super::args::Verb;
use super::line_rate::LineRate;
use super::options::Options;
use super::run::Row;
use crate::profile;
use linerate::transport::PortInUse;
use std::fmt::Write;

const LINE: &str =
    "---------------------------------------------------------------------------------------";
const MIB: f64 = 1_048_576.0;

/// What the header says besides the options.
pub struct Sides<'a> {
    /// Transport in use.
    pub transport: &'a str,
    /// Which side this is.
    pub text: String,
    /// Ports of devices of this side.
    pub ports: Vec<PortInUse>,
    /// What they can carry.
    pub rate: &'a LineRate,
}

/// Lines before the first row.
pub fn header(options: &Options, sides: &Sides, is_gbits: bool) -> String {
    let test = options.test;
    let mut text = format!("{LINE}\n");
    let two_ways = if options.bidirectional {
        " bidirectional"
    } else {
        ""
    };
    let _ = writeln!(
        text,
        " linerate {} perf {}{two_ways}   {}",
        env!("CARGO_PKG_VERSION"),
        test.name(),
        sides.text
    );
    let yes = |on: bool| if on { "ON" } else { "OFF" };
    let _ = writeln!(
        text,
        " Transport: {}{}   TX depth: {}   Number of qps: {}   Rotation: {}   Check: {}",
        sides.transport,
        over(options, sides.transport),
        options.depth,
        options.streams,
        yes(options.rotate),
        yes(options.check)
    );
    for port in &sides.ports {
        let _ = writeln!(text, "{}", port_line(port));
    }
    if test.verb() == Verb::Atomic {
        let _ = writeln!(text, " Atomic type: {}", options.atomic_type.name());
    }
    if !test.is_latency() {
        let _ = writeln!(text, " Achievable: {}", sides.rate.text(options));
    }
    let meaning = match test.is_latency() {
        true if test.is_one_sided() => " A time is that of a whole operation, there and back",
        true => " A time is half that of a message there and one back",
        false => {
            " #iterations: messages of one direction, all qps; time ends when the other side has them all"
        }
    };
    let _ = writeln!(
        text,
        "{meaning}\n{LINE}\n{}",
        titles(options, is_gbits, sides.rate.is_known())
    );
    text
}

/// perftest's words for a port.
fn port_line(port: &PortInUse) -> String {
    format!(
        " Device: {} port {}   Link type: {}   GID index: {}   Mtu: {}[B]   Number of qps: {}   Max inline data: {}[B]   Connection type: RC",
        port.device,
        port.number,
        if port.is_ethernet { "Ethernet" } else { "IB" },
        port.gid_index,
        port.packet_bytes(),
        port.queue_pairs,
        port.inline_bytes
    )
}

/// What is done to connections.
fn over(options: &Options, transport: &str) -> &'static str {
    match (options.tls, options.crc) {
        _ if transport != "tcp" => "",
        (true, true) => " (TLS, CRC)",
        (true, false) => " (TLS)",
        (false, true) => " (CRC)",
        (false, false) => "",
    }
}

/// The titles of the columns.
fn titles(options: &Options, is_gbits: bool, has_share: bool) -> String {
    let titles = match (options.test.is_latency(), is_gbits) {
        (true, _) => {
            " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec] "
        }
        (false, false) => {
            " #bytes     #iterations    BW peak[MiB/sec]    BW average[MiB/sec]   MsgRate[Mpps]"
        }
        (false, true) => {
            " #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]"
        }
    };
    match has_share && !options.test.is_latency() {
        true => format!("{titles}   of achievable[%]"),
        false => titles.into(),
    }
}

/// The line of one size.
pub fn row(row: &Row, is_gbits: bool) -> String {
    if let Some(latency) = &row.latency {
        let s = &latency.summary;
        return format!(
            " {:<7} {:<10}     {:<7.2}        {:<7.2}      {:<7.2}\t       {:<7.2}     \t{:<7.2}\t\t{:<7.2} \t\t{:<7.2}\n",
            row.bytes, row.messages, s.min, s.max, s.p50, s.mean, s.stddev, s.p99, latency.p999
        );
    }
    let unit = if is_gbits { 1e9 / 8.0 } else { MIB };
    let bandwidth = |rate: f64| rate * row.bytes as f64 / unit;
    let share = row.percent().map(|percent| format!("\t   {percent:.1}"));
    format!(
        " {:<7}    {:<10}       {:<7.2}            {:<7.2}\t\t   {:<7.6}{}\n",
        row.bytes,
        row.messages,
        bandwidth(row.peak),
        bandwidth(row.rate),
        row.rate / 1e6,
        share.unwrap_or_default()
    )
}

/// The line after the last row.
pub fn footer() -> String {
    format!("{LINE}\n")
}

/// Where the time of a message goes; empty without `--profile`.
pub fn profile(options: &Options, rows: &[Row]) -> String {
    if !options.profile {
        return String::new();
    }
    let [names, units] = profile::titles();
    let mut text = format!(
        " Where the time of a message goes, on each side (rank 0 is the server)\n {:<8}{names}\n {:8}{units}\n",
        "#bytes", ""
    );
    for row in rows {
        for columns in profile::columns(&row.profile) {
            let _ = writeln!(text, " {:<8}{columns}", row.bytes);
        }
    }
    text + &footer()
}

#[cfg(test)]
mod tests {
    use super::super::options::tests::options;
    use super::super::statistics::Latency;
    use super::*;

    fn bandwidth() -> Row {
        Row {
            bytes: 65536,
            messages: 5000,
            peak: 20_000.0,
            rate: 16_000.0,
            latency: None,
            wrong: Some(0),
            achievable: None,
            profile: Vec::new(),
        }
    }

    #[test]
    fn rows_are_perftest_s() {
        assert_eq!(
            row(&bandwidth(), false),
            " 65536      5000             1250.00            1000.00\t\t   0.016000\n"
        );
        assert!(row(&bandwidth(), true).contains(" 10.49              8.39 "));
        let latency = Row {
            bytes: 2,
            messages: 1000,
            latency: Some(Latency::of(&mut [1.0, 2.0, 3.0])),
            ..bandwidth()
        };
        assert_eq!(
            row(&latency, false),
            " 2       1000           1.00           3.00         2.00   \t       2.00        \t0.82   \t\t3.00    \t\t3.00   \n"
        );
    }

    #[test]
    fn titles_are_perftest_s() {
        let rate = LineRate::unknown("memory has no line rate");
        let sides = || Sides {
            transport: "shm",
            text: "both sides on this host".into(),
            ports: Vec::new(),
            rate: &rate,
        };
        let text = header(&options("write_bw -b").unwrap(), &sides(), false);
        assert!(text.contains("perf write_bw bidirectional"), "{text}");
        assert!(
            text.ends_with(
                " #bytes     #iterations    BW peak[MiB/sec]    BW average[MiB/sec]   MsgRate[Mpps]\n"
            ),
            "{text}"
        );
        let text = header(&options("read_lat").unwrap(), &sides(), false);
        assert!(
            text.contains("99.9% percentile[usec]") && text.contains("whole operation"),
            "{text}"
        );
        let text = header(&options("send_bw").unwrap(), &sides(), true);
        assert!(text.contains("BW average[Gb/sec]"), "{text}");
    }
}
