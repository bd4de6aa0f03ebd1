//! [`Mesh`]: what was measured of every pair, the pairs that are slow, and how both are told. Pure.

use linerate::Rank;
use serde::Serialize;
use std::fmt::Write;

/// Numbers per pair: median and 99th percentile of the latency, bandwidth.
const KINDS: usize = 3;
/// Wider matrices are left to the document and the heat map.
const SHOWN_RANKS_MAX: u32 = 32;

/// What makes a pair slow, or the run fail.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Thresholds {
    /// Times the median.
    pub slow: f64,
    /// GB/s.
    pub min_bw: Option<f64>,
    /// us.
    pub max_p99: Option<f64>,
}

/// All pairs, by the rank that began and the other one. Each rank fills in what it has measured;
/// the sum over all ranks is the whole.
#[derive(Clone, Debug, PartialEq)]
pub struct Mesh {
    ranks: u32,
    /// [`KINDS`] matrices, then for each rank a number of its host, then for each rank one of its
    /// processor.
    values: Vec<f64>,
}

/// One direction of a pair that is slow.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Slow {
    from: Rank,
    to: Rank,
    /// `latency_us` or `bandwidth`.
    what: &'static str,
    value: f64,
    median: f64,
    same_host: bool,
    /// Both ranks may run on one and the same processor only.
    same_processor: bool,
}

/// The JSON document.
#[derive(Debug, Serialize)]
pub struct Document {
    version: &'static str,
    transport: String,
    ranks: u32,
    bytes: u64,
    /// Row: the rank that began. `null` on the diagonal.
    latency_us: Vec<Vec<Option<f64>>>,
    latency_p99_us: Vec<Vec<Option<f64>>>,
    /// GB/s (1e9 bytes), from row to column.
    bandwidth: Vec<Vec<Option<f64>>>,
    slow: Vec<Slow>,
}

impl Mesh {
    /// Nothing measured.
    pub fn new(ranks: u32) -> Mesh {
        let (ranks_count, kinds) = (ranks as usize, KINDS);
        Mesh {
            ranks,
            values: vec![0.0; kinds * ranks_count * ranks_count + 2 * ranks_count],
        }
    }

    /// Ranks.
    pub fn ranks(&self) -> u32 {
        self.ranks
    }

    /// The numbers, which are summed over all ranks.
    pub fn values_mut(&mut self) -> &mut [f64] {
        &mut self.values
    }

    /// Notes the host of a rank: ranks of one host give equal numbers.
    pub fn set_host(&mut self, rank: Rank, host: u64) {
        let at = KINDS * (self.ranks * self.ranks) as usize + rank as usize;
        self.values[at] = (host >> 11) as f64;
    }

    /// Notes that a rank may run on this processor only.
    pub fn set_processor(&mut self, rank: Rank, processor: usize) {
        let at = KINDS * (self.ranks * self.ranks) as usize + (self.ranks + rank) as usize;
        self.values[at] = processor as f64 + 1.0;
    }

    /// One direction of a pair: median and 99th percentile in us, and GB/s.
    pub fn set(&mut self, from: Rank, to: Rank, (median, p99): (f64, f64), bandwidth: f64) {
        for (kind, value) in [median, p99, bandwidth].into_iter().enumerate() {
            let at = self.at(kind, from, to);
            self.values[at] = value;
        }
    }

    /// Median latency, us.
    pub fn latency(&self, from: Rank, to: Rank) -> f64 {
        self.values[self.at(0, from, to)]
    }

    fn p99(&self, from: Rank, to: Rank) -> f64 {
        self.values[self.at(1, from, to)]
    }

    /// GB/s.
    pub fn bandwidth(&self, from: Rank, to: Rank) -> f64 {
        self.values[self.at(2, from, to)]
    }

    fn at(&self, kind: usize, from: Rank, to: Rank) -> usize {
        let ranks = self.ranks as usize;
        (kind * ranks + from as usize) * ranks + to as usize
    }

    fn is_same_host(&self, a: Rank, b: Rank) -> bool {
        let host = |rank: Rank| self.places()[rank as usize];
        host(a) == host(b)
    }

    fn is_same_processor(&self, a: Rank, b: Rank) -> bool {
        let processor = |rank: Rank| self.places()[(self.ranks + rank) as usize];
        self.is_same_host(a, b) && processor(a) > 0.0 && processor(a) == processor(b)
    }

    /// Hosts of all ranks, then processors.
    fn places(&self) -> &[f64] {
        &self.values[KINDS * (self.ranks * self.ranks) as usize..]
    }

    /// All directed pairs.
    pub fn pairs(&self) -> impl Iterator<Item = (Rank, Rank)> + '_ {
        let all = (0..self.ranks).flat_map(|a| (0..self.ranks).map(move |b| (a, b)));
        all.filter(|(a, b)| a != b)
    }

    /// Pairs that are slow beside the others of their kind: within a host, or between hosts.
    pub fn slow(&self, factor: f64) -> Vec<Slow> {
        let mut slow = Vec::new();
        for same_host in [true, false] {
            let of_kind: Vec<(Rank, Rank)> = self
                .pairs()
                .filter(|&(a, b)| self.is_same_host(a, b) == same_host)
                .collect();
            let latency = median(of_kind.iter().map(|&(a, b)| self.latency(a, b)));
            let bandwidth = median(of_kind.iter().map(|&(a, b)| self.bandwidth(a, b)));
            for (from, to) in of_kind {
                let found = |what, value, median| Slow {
                    from,
                    to,
                    what,
                    value,
                    median,
                    same_host,
                    same_processor: self.is_same_processor(from, to),
                };
                let value = self.latency(from, to);
                if value > factor * latency {
                    slow.push(found("latency_us", value, latency));
                }
                let value = self.bandwidth(from, to);
                if value * factor < bandwidth {
                    slow.push(found("bandwidth", value, bandwidth));
                }
            }
        }
        slow
    }

    /// Complaints about what is below or above the bounds that were given, pair by pair.
    pub fn shortcomings(&self, thresholds: &Thresholds) -> Vec<String> {
        let mut texts = Vec::new();
        for (from, to) in self.pairs() {
            let (bandwidth, p99) = (self.bandwidth(from, to), self.p99(from, to));
            if let Some(least) = thresholds.min_bw.filter(|&least| bandwidth < least) {
                texts.push(format!(
                    "rank {from} to {to}: {bandwidth:.3} GB/s, below --min-bw {least}"
                ));
            }
            if let Some(most) = thresholds.max_p99.filter(|&most| p99 > most) {
                texts.push(format!(
                    "rank {from} to {to}: the 99th percentile is {p99:.2} us, above --max-p99 {most}"
                ));
            }
        }
        texts
    }

    /// Everything, for programs.
    pub fn document(&self, transport: &str, bytes: u64, thresholds: &Thresholds) -> Document {
        let matrix = |of: &dyn Fn(Rank, Rank) -> f64| {
            let row = |a| {
                (0..self.ranks)
                    .map(|b| (a != b).then(|| of(a, b)))
                    .collect()
            };
            (0..self.ranks).map(row).collect()
        };
        Document {
            version: env!("CARGO_PKG_VERSION"),
            transport: transport.into(),
            ranks: self.ranks,
            bytes,
            latency_us: matrix(&|a, b| self.latency(a, b)),
            latency_p99_us: matrix(&|a, b| self.p99(a, b)),
            bandwidth: matrix(&|a, b| self.bandwidth(a, b)),
            slow: self.slow(thresholds.slow),
        }
    }

    /// Everything, for people.
    pub fn describe(&self, transport: &str, bytes: u64, thresholds: &Thresholds) -> String {
        let mut text = format!(
            "# linerate {} mesh ranks: {} transport: {transport}; one pair at a time, row: the rank that begins\n",
            env!("CARGO_PKG_VERSION"),
            self.ranks
        );
        let latency = "latency of 8 B, us (median; half a round trip)";
        self.describe_matrix(&mut text, latency, |a, b| self.latency(a, b));
        let bandwidth = format!("bandwidth of {bytes} B from row to column, GB/s");
        self.describe_matrix(&mut text, &bandwidth, |a, b| self.bandwidth(a, b));
        let slow = self.slow(thresholds.slow);
        for pair in &slow {
            let (what, unit, verb) = match pair.what {
                "bandwidth" => ("bandwidth", "GB/s", "below"),
                _ => ("latency", "us", "above"),
            };
            let place = if pair.same_host {
                "within a host"
            } else {
                "between hosts"
            };
            let _ = writeln!(
                text,
                "slow: rank {} to {}: {what} {:.3} {unit}, {verb} the median {place} ({:.3}) by more than {} times{}",
                pair.from,
                pair.to,
                pair.value,
                pair.median,
                thresholds.slow,
                reason(pair)
            );
        }
        for rank in self.ranks_in_all(&slow) {
            let _ = writeln!(
                text,
                "slow: rank {rank} with every other rank: look at its host, cores and link"
            );
        }
        if slow.is_empty() {
            let _ = writeln!(
                text,
                "no pair is slower than the median of its kind by more than {} times",
                thresholds.slow
            );
        }
        text
    }

    fn describe_matrix(&self, text: &mut String, title: &str, of: impl Fn(Rank, Rank) -> f64) {
        let _ = writeln!(text, "# {title}");
        if self.ranks > SHOWN_RANKS_MAX {
            let values = self.pairs().map(|(a, b)| of(a, b));
            let (least, most) = values.fold((f64::MAX, 0.0f64), |(least, most), v| {
                (least.min(v), most.max(v))
            });
            let _ = writeln!(
                text,
                "from {least:.3} to {most:.3}; all of them with --json or --svg"
            );
            return;
        }
        let titles = (0..self.ranks).map(|rank| format!("{rank:>9}"));
        let _ = writeln!(text, "# {:>5}{}", "rank", titles.collect::<String>());
        for a in 0..self.ranks {
            let cell = |b| match a == b {
                true => format!("{:>9}", "-"),
                false => format!("{:>9.3}", of(a, b)),
            };
            let _ = writeln!(
                text,
                "  {a:>5}{}",
                (0..self.ranks).map(cell).collect::<String>()
            );
        }
    }

    /// Ranks that are slow with every other rank, of three ranks or more.
    fn ranks_in_all(&self, slow: &[Slow]) -> Vec<Rank> {
        let peers = |rank: Rank| {
            let others = (0..self.ranks).filter(move |&b| b != rank);
            let is_slow = move |b: &Rank| {
                let of_pair =
                    |s: &&Slow| (s.from, s.to) == (rank, *b) || (s.to, s.from) == (rank, *b);
                slow.iter().any(|s| of_pair(&s))
            };
            others.filter(is_slow).count() as u32
        };
        let all = (0..self.ranks).filter(|&rank| self.ranks > 2 && peers(rank) == self.ranks - 1);
        all.collect()
    }
}

/// Why a pair is slow, where that is known.
fn reason(pair: &Slow) -> &'static str {
    match pair.same_processor {
        true => ": both ranks share one processor",
        false => "",
    }
}

/// 0 without values; of an even number the lower one of the two in the middle.
fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut sorted: Vec<f64> = values.collect();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => 0.0,
        count => sorted[(count - 1) / 2],
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    pub fn even(ranks: u32) -> Mesh {
        let mut mesh = Mesh::new(ranks);
        for (a, b) in mesh.clone().pairs() {
            mesh.set(a, b, (1.0, 2.0), 10.0);
        }
        mesh
    }

    const THRESHOLDS: Thresholds = Thresholds {
        slow: 2.0,
        min_bw: None,
        max_p99: None,
    };

    #[test]
    fn an_even_mesh_has_no_slow_pairs() {
        for ranks in [2, 3, 8] {
            assert!(even(ranks).slow(2.0).is_empty());
        }
        assert!(
            even(3)
                .describe("shm", 8, &THRESHOLDS)
                .contains("no pair is slower")
        );
    }

    #[test]
    fn a_slow_pair_is_named_with_both_numbers() {
        let mut mesh = even(4);
        mesh.set(1, 3, (2.5, 3.0), 10.0);
        mesh.set(2, 0, (1.0, 2.0), 4.0);
        let text = mesh.describe("shm", 1 << 20, &THRESHOLDS);
        assert!(
            text.contains(
                "slow: rank 1 to 3: latency 2.500 us, above the median within a host (1.000)"
            ),
            "{text}"
        );
        assert!(
            text.contains("slow: rank 2 to 0: bandwidth 4.000 GB/s, below"),
            "{text}"
        );
        assert!(!text.contains("every other"), "{text}");
        assert_eq!(mesh.slow(3.0), []);
    }

    #[test]
    fn a_pair_that_shares_a_processor_is_slow_for_that_reason() {
        let mut mesh = even(4);
        for (rank, processor) in [0, 1, 2, 1].into_iter().enumerate() {
            mesh.set_processor(rank as Rank, processor);
        }
        mesh.set(1, 3, (9.0, 9.0), 10.0);
        mesh.set(0, 2, (9.0, 9.0), 10.0);
        let text = mesh.describe("shm", 8, &THRESHOLDS);
        let reasons = text.matches("2 times: both ranks share one processor\n");
        assert_eq!(reasons.count(), 1, "{text}");
        assert!(
            mesh.slow(2.0)
                .iter()
                .any(|slow| slow.same_processor && slow.from == 1)
        );
    }

    #[test]
    fn pairs_between_hosts_are_compared_with_their_like() {
        let mut mesh = even(4);
        for rank in 0..4 {
            mesh.set_host(rank, (u64::from(rank) / 2 + 1) << 20);
        }
        for (a, b) in [(0, 2), (0, 3), (1, 2), (1, 3)] {
            mesh.set(a, b, (30.0, 40.0), 1.0);
            mesh.set(b, a, (30.0, 40.0), 1.0);
        }
        assert_eq!(mesh.slow(2.0), []);
        mesh.set(0, 3, (90.0, 99.0), 1.0);
        assert!(
            mesh.describe("tcp", 8, &THRESHOLDS)
                .contains("between hosts (30.000)")
        );
    }

    #[test]
    fn a_rank_that_is_slow_with_everybody_is_named() {
        let mut mesh = even(5);
        for other in 0..4 {
            mesh.set(4, other, (9.0, 9.0), 10.0);
        }
        let text = mesh.describe("shm", 8, &THRESHOLDS);
        assert!(
            text.contains("slow: rank 4 with every other rank"),
            "{text}"
        );
        assert_eq!(text.matches("every other").count(), 1, "{text}");
    }

    #[test]
    fn bounds_fail_by_pair() {
        let mut mesh = even(2);
        mesh.set(1, 0, (1.0, 7.0), 3.0);
        let texts = mesh.shortcomings(&Thresholds {
            min_bw: Some(5.0),
            max_p99: Some(6.0),
            ..THRESHOLDS
        });
        assert_eq!(texts.len(), 2);
        assert!(texts[0].contains("rank 1 to 0: 3.000 GB/s") && texts[1].contains("7.00 us"));
    }

    #[test]
    fn a_document_has_a_row_for_each_rank_and_nothing_on_the_diagonal() {
        let document = even(3).document("shm", 8, &THRESHOLDS);
        let value = serde_json::to_value(document).unwrap();
        assert_eq!(value["bandwidth"].as_array().unwrap().len(), 3);
        assert!(value["latency_us"][1][1].is_null());
        assert_eq!(value["latency_p99_us"][0][2], 2.0);
    }

    #[test]
    fn wide_matrices_are_summed_up() {
        let text = even(33).describe("shm", 8, &THRESHOLDS);
        assert!(
            text.contains("from 1.000 to 1.000") && text.lines().count() < 10,
            "{text}"
        );
    }
}
