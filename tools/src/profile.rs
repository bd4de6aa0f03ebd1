//! Where the time of operations goes, for `--profile` of `bench` and `perf`: as columns of a table
//! and as entries of a document. Pure.

use linerate::unstable::wait::{Activity, Spent};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What the operations of one rank went to, all together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Profiled {
    /// How many there were.
    pub operations: u64,
    /// Nanoseconds.
    pub spent: Spent,
}

/// One rank in a document.
#[derive(Debug, Serialize)]
pub struct ProfileEntry {
    rank: usize,
    /// Time of one operation, us: the sum of `spent_us`.
    time_us: f64,
    /// By activity.
    spent_us: BTreeMap<&'static str, f64>,
}

impl Profiled {
    /// Time of one operation, us.
    fn time_us(&self) -> f64 {
        self.per_operation(self.spent.iter().sum())
    }

    fn per_operation(&self, spent_ns: u64) -> f64 {
        spent_ns as f64 * 1e-3 / self.operations.max(1) as f64
    }
}

/// The entries of all ranks, in their order.
pub fn entries(ranks: &[Profiled]) -> Vec<ProfileEntry> {
    let entry = |(rank, of): (usize, &Profiled)| ProfileEntry {
        rank,
        time_us: of.time_us(),
        spent_us: (Activity::ALL.iter().zip(of.spent))
            .map(|(activity, spent_ns)| (activity.name(), of.per_operation(spent_ns)))
            .collect(),
    };
    ranks.iter().enumerate().map(entry).collect()
}

/// Titles of the columns of one rank, and units.
pub fn titles() -> [String; 2] {
    let names = Activity::ALL.map(|activity| format!(" {:>9}", activity.name()));
    let units = Activity::ALL.map(|_| format!(" {:>9}", "(%)"));
    [
        format!("{:>6} {:>11}{}", "rank", "time", names.concat()),
        format!("{:>6} {:>11}{}", "", "(us)", units.concat()),
    ]
}

/// The columns of each rank: the time of one operation, and shares that add up to 100 %.
pub fn columns(ranks: &[Profiled]) -> impl Iterator<Item = String> {
    ranks.iter().enumerate().map(|(rank, of)| {
        let all_ns = of.spent.iter().sum::<u64>().max(1) as f64;
        let share = |spent_ns: u64| format!(" {:>9.1}", 100.0 * spent_ns as f64 / all_ns);
        let shares: String = of.spent.into_iter().map(share).collect();
        format!("{rank:>6} {:>11.2}{shares}", of.time_us())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two operations of 4 us: three quarters reducing, the rest posting.
    fn profiled() -> Profiled {
        let mut spent = Spent::default();
        spent[Activity::Reducing as usize] = 6000;
        spent[Activity::Posting as usize] = 2000;
        Profiled {
            operations: 2,
            spent,
        }
    }

    #[test]
    fn shares_stand_under_their_activities() {
        let line = columns(&[profiled()]).next().unwrap();
        let [names, units] = titles();
        assert_eq!(
            [names.len(), units.len()],
            [line.len(); 2],
            "{names}\n{line}"
        );
        let at = names.find(" reducing").unwrap();
        assert_eq!(line[at..at + " reducing".len()].trim(), "75.0", "{line}");
        assert!(line.starts_with("     0        4.00 "), "{line}");
    }

    #[test]
    fn a_document_has_the_times_of_one_operation() {
        let entries = entries(&[profiled(), profiled()]);
        let value = serde_json::to_value(&entries).unwrap();
        assert_eq!(value[1]["rank"], 1);
        assert_eq!(value[1]["time_us"], 4.0);
        assert_eq!(value[1]["spent_us"]["posting"], 1.0);
        assert_eq!(value[1]["spent_us"]["wire idle"], 0.0);
    }

    #[test]
    fn nothing_measured_is_no_share_of_anything() {
        let none = Profiled {
            operations: 0,
            spent: Spent::default(),
        };
        assert!(columns(&[none]).next().unwrap().ends_with(" 0.0"));
    }
}
