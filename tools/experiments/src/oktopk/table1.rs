//! Table 1: words and messages of each scheme as they are counted, beside its formula.

use super::shape::{BERT, Scheme, run_sized};
use crate::section::Section;
use linerate::reports::Phase;
use linerate::unstable::sparse::{Entries, OkTopkState, Sized, Support};
use linerate_job::fabric::{Fabric, Network, Outcome};
use serde_json::{Value, json};

const RANKS: [u32; 12] = [2, 3, 4, 5, 8, 16, 17, 32, 64, 100, 128, 256];
const RANKS_QUICK: [u32; 5] = [2, 3, 8, 17, 32];

/// One scheme on this many ranks.
struct Row {
    scheme: Scheme,
    ranks: u32,
    support: Support,
    sent: f64,
    received: f64,
    received_mean: f64,
    control: u64,
    messages: u64,
    /// The words that the formula is about.
    measured: f64,
}

pub fn run(is_quick: bool) -> Result<Section, String> {
    let ranks: &[u32] = if is_quick { &RANKS_QUICK } else { &RANKS };
    let mut section = Section::new("table1");
    section.line(format!(
        "Table 1: words of 4 bytes per rank, n = {}, k = {}, counted; Dense from the bytes on the modelled network",
        BERT.count, BERT.k
    ));
    section.line(format!(
        "{:>5} {:>10} {:>11} {:>11} {:>11} {:>11} {:>23} {:>8} {:>9} {:>8} {:>8}",
        "ranks",
        "scheme",
        "support",
        "sent max",
        "recv max",
        "recv mean",
        "formula",
        "ratio",
        "control",
        "messages",
        "latency"
    ));
    let mut rows = Vec::new();
    for &ranks in ranks {
        for scheme in Scheme::ALL {
            for support in [Support::Independent, Support::Identical] {
                let has_fill_in = matches!(scheme, Scheme::TopkDsa | Scheme::OkTopk);
                if support == Support::Identical && !has_fill_in {
                    continue;
                }
                let row = measure(scheme, ranks, support, &mut section)?;
                section.line(row.text());
                rows.push(row.json());
            }
        }
    }
    section.document = Value::Array(rows);
    Ok(section)
}

fn measure(
    scheme: Scheme,
    ranks: u32,
    support: Support,
    section: &mut Section,
) -> Result<Row, String> {
    if scheme == Scheme::Dense {
        let (_, words) = Network::new(Fabric::PAPER, ranks)?.dense(BERT.count)?;
        let row = Row {
            scheme,
            ranks,
            support,
            sent: words,
            received: words,
            received_mean: words,
            control: 0,
            messages: 2 * (u64::from(ranks) - 1),
            measured: words,
        };
        row.check(section);
        return Ok(row);
    }
    let outcome = run_sized(
        scheme,
        (BERT, ranks),
        support,
        &OkTopkState::default(),
        None,
    )?;
    let words = outcome.words();
    let row = Row {
        scheme,
        ranks,
        support,
        sent: words.sent as f64,
        received: words.received as f64,
        received_mean: words.received_mean,
        control: words.control,
        messages: words.messages,
        measured: match scheme {
            // Up and down the tree: the root receives in each round, then sends in each.
            Scheme::GTopk => (words.sent + words.received) as f64,
            _ => words.received.max(words.sent) as f64,
        },
    };
    row.check(section);
    if scheme == Scheme::OkTopk {
        check_volume(&outcome, (BERT.k, ranks), section);
    }
    Ok(row)
}

impl Row {
    /// Checks the words against the formula, up to a rounding to whole entries for each rank.
    fn check(&self, section: &mut Section) {
        let (least, most) = self.scheme.words(BERT, self.ranks);
        let slack = match self.scheme {
            // Sizes without values cut regions at whole coordinates; fill-in is rounded.
            Scheme::TopkDsa => 0.01 * most,
            Scheme::Dense => 0.001 * most,
            _ => 2.0 * f64::from(self.ranks),
        };
        if self.measured < least - slack || self.measured > most + slack {
            section.violation(format!(
                "{} of {} ranks: {} words, its formula says {least} to {most}",
                self.scheme.name(),
                self.ranks,
                self.measured
            ));
        }
    }

    fn support_name(&self) -> &'static str {
        match self.support {
            Support::Independent => "independent",
            Support::Identical => "identical",
        }
    }

    fn text(&self) -> String {
        let (least, most) = self.scheme.words(BERT, self.ranks);
        let formula = match least == most {
            true => format!("{most:.4e}"),
            false => format!("{least:.4e}..{most:.4e}"),
        };
        format!(
            "{:>5} {:>10} {:>11} {:>11.4e} {:>11.4e} {:>11.4e} {:>23} {:>8.4} {:>9} {:>8} {:>8}",
            self.ranks,
            self.scheme.name(),
            self.support_name(),
            self.sent,
            self.received,
            self.received_mean,
            formula,
            self.measured / most,
            self.control,
            self.messages,
            self.scheme.messages(self.ranks),
        )
    }

    fn json(&self) -> Value {
        let (least, most) = self.scheme.words(BERT, self.ranks);
        json!({
            "scheme": self.scheme.name(), "ranks": self.ranks, "support": self.support_name(),
            "words_sent_max": self.sent, "words_received_max": self.received,
            "words_received_mean": self.received_mean, "words": self.measured,
            "formula_least": least, "formula_most": most, "control_words": self.control,
            "messages": self.messages, "formula_messages": self.scheme.messages(self.ranks),
        })
    }
}

/// Checks the bounds of every rank in a step of exact mode that cuts its regions anew.
fn check_volume(outcome: &Outcome<Sized>, (k, ranks): (u64, u32), section: &mut Section) {
    let p = u64::from(ranks);
    let words = outcome.words();
    let what = format!("Ok-Topk of {ranks} ranks");
    if words.sent > 6 * k + 2 * p || words.received_mean > (6 * k + 2 * p) as f64 {
        section.violation(format!(
            "{what}: {} words sent, {} received in the mean; 6k + 2P is {}",
            words.sent,
            words.received_mean,
            6 * k + 2 * p
        ));
    }
    for finished in &outcome.finished {
        let selected = finished.result.len();
        let (reduce, balance) = (
            finished.counters.of(Phase::Reduce).data_words_received,
            finished.counters.of(Phase::Balance).data_words_received,
        );
        if reduce > 2 * (k + p) || balance > 2 * selected.div_ceil(p) {
            section.violation(format!("{what}: {reduce} and {balance} words received"));
        }
        if selected != k.min(finished.reduced.unwrap_or(0)) {
            section.violation(format!("{what}: {selected} entries instead of {k}"));
        }
    }
}
