//! The table, as nccl-tests prints it (`src/common.cu`). Pure: every function gives text.

use super::layout::Placement;
use super::measure::{Cell, Measured};
use super::pacing;
use super::plan::Plan;
use crate::profile;
use linerate::ReduceOp;
use std::fmt::Write;

/// Comment lines and column titles.
pub fn header(plan: &Plan, transport: &str) -> String {
    let mut text = String::new();
    let or_adaptive = |count: Option<u32>| count.map_or("adaptive".into(), |n| n.to_string());
    let _ = writeln!(
        text,
        "# linerate {} bench {} ranks: {} transport: {transport} memory: {} rotate: {}",
        env!("CARGO_PKG_VERSION"),
        plan.collective,
        plan.ranks,
        plan.memory.name(),
        u8::from(plan.rotate)
    );
    let _ = writeln!(
        text,
        "# minBytes {} maxBytes {} warmup iters: {} iters: {} validate: {} algo: {} seed: {}",
        plan.sizes.first().unwrap_or(&0),
        plan.sizes.last().unwrap_or(&0),
        plan.warmup.unwrap_or(pacing::WARMUP_DEFAULT),
        or_adaptive(plan.iterations),
        u8::from(plan.check),
        plan.algorithm.as_deref().unwrap_or("auto"),
        plan.seed
    );
    let meaning = match plan.link {
        Some(link) => format!(
            "# virtual time: a modelled network of {} Gbit/s and {} us, no local work; says nothing about this machine",
            link.gbit, link.latency_us
        ),
        None => "# time is the median (p50) over iterations of the slowest rank's time, each started after a barrier".into(),
    };
    let _ = writeln!(text, "{meaning}\n#");
    let blanks = left_columns("# ", ["", "", "", "", ""]);
    let names = left_columns("# ", ["size", "count", "type", "redop", "root"]);
    let units = left_columns("# ", ["(B)", "(elements)", "", "", ""]);
    let names_of = |width: usize| -> String {
        let names = plan.placements.iter().map(|placement| placement.name());
        names.map(|name| format!("{name:^width$}")).collect()
    };
    let placements = plan.placements.len();
    let mut lines = [
        blanks + &names_of(title_columns([""; 4]).len()),
        names + &title_columns(["time", "algbw", "busbw", "#wrong"]).repeat(placements),
        units + &title_columns(["(us)", "(GB/s)", "(GB/s)", ""]).repeat(placements),
    ];
    if plan.stats {
        let titles = ["min", "p90", "p99", "max", "stddev"];
        lines[0] += &names_of(5 * stats_column("").len());
        lines[1] += &titles.map(stats_column).concat().repeat(placements);
        lines[2] += &stats_column("(us)").repeat(5 * placements);
    }
    text + &lines.join("\n") + "\n"
}

/// One row.
pub fn row(plan: &Plan, measured: &Measured) -> String {
    let (op, root) = (op_name(plan, measured.op), root_name(plan));
    let (bytes, count) = (measured.bytes.to_string(), measured.count.to_string());
    let mut text = left_columns("  ", [&bytes, &count, measured.dtype.name(), op, &root]);
    let placements = plan.placements.iter();
    let cells = placements.map(|&placement| cell_of(measured, placement));
    for cell in cells.clone() {
        text.push_str(&cell_columns(cell));
    }
    for cell in cells.filter(|_| plan.stats) {
        text.push_str(&stats_columns(cell));
    }
    text.push('\n');
    text
}

/// The lines after the last row.
pub fn footer(wrong: u64, average_busbw: f64) -> String {
    let verdict = if wrong == 0 { "OK" } else { "FAILED" };
    format!(
        "# Out of bounds values : {wrong} {verdict}\n# Avg bus bandwidth    : {}\n#\n",
        significant(average_busbw)
    )
}

/// Titles of the table of where the time goes; empty without `--profile`.
pub fn profile_header(plan: &Plan) -> String {
    if !plan.profile {
        return String::new();
    }
    let [names, units] = profile::titles();
    let left = profile_left(["size", "type", "redop", "placement"]);
    let blank = profile_left(["(B)", "", "", ""]);
    format!("# Where the time of an operation goes, on each rank:\n{left}{names}\n{blank}{units}\n")
}

/// The lines of one row in that table: one for each placement and rank.
pub fn profile_rows(plan: &Plan, measured: &Measured) -> String {
    let (bytes, op) = (measured.bytes.to_string(), op_name(plan, measured.op));
    let cells = plan.placements.iter().filter_map(|&placement| {
        let cell = cell_of(measured, placement)?;
        let left = profile_left([&bytes, measured.dtype.name(), op, placement.name()]);
        let lines = profile::columns(&cell.profile);
        Some(
            lines
                .map(|line| format!("{left}{line}\n"))
                .collect::<String>(),
        )
    });
    cells.collect()
}

fn profile_left([size, dtype, op, placement]: [&str; 4]) -> String {
    format!("# {size:>10}  {dtype:>8}  {op:>6}  {placement:>12}")
}

fn cell_of(measured: &Measured, placement: Placement) -> Option<&Cell> {
    match placement {
        Placement::OutOfPlace => measured.out_of_place.as_ref(),
        Placement::InPlace => measured.in_place.as_ref(),
    }
}

fn left_columns(begin: &str, columns: [&str; 5]) -> String {
    let [size, count, dtype, op, root] = columns;
    format!("{begin}{size:>10}  {count:>12}  {dtype:>8}  {op:>6}  {root:>6}")
}

fn title_columns(titles: [&str; 4]) -> String {
    let [time, algbw, busbw, wrong] = titles;
    format!("  {time:>7}  {algbw:>6}  {busbw:>6} {wrong:>6}")
}

fn stats_column(text: &str) -> String {
    format!("  {text:>9}")
}

fn cell_columns(cell: Option<&Cell>) -> String {
    let Some(cell) = cell else {
        let none = "N/A";
        return format!("  {none:>7}  {none:>6}  {none:>6}  {none:>5}");
    };
    let wrong = cell.wrong.map_or("N/A".into(), |n| n.to_string());
    format!(
        "  {:>7}  {:>6.2}  {:>6.2}  {wrong:>5}",
        time(cell.time_us.p50),
        cell.algbw,
        cell.busbw
    )
}

fn stats_columns(cell: Option<&Cell>) -> String {
    let Some(cell) = cell else {
        return stats_column("N/A").repeat(5);
    };
    let t = &cell.time_us;
    [t.min, t.p90, t.p99, t.max, t.stddev]
        .iter()
        .map(|&value| stats_column(&time(value)))
        .collect()
}

/// Three or more digits are enough: nccl-tests' rule.
pub fn time(time_us: f64) -> String {
    if time_us >= 10_000.0 {
        format!("{time_us:.0}")
    } else if time_us >= 100.0 {
        format!("{time_us:.1}")
    } else {
        format!("{time_us:.2}")
    }
}

/// Six significant digits without trailing zeros, like C's `%g` for numbers of this size.
fn significant(value: f64) -> String {
    if value == 0.0 {
        return "0".into();
    }
    let decimals = (5 - value.abs().log10().floor() as i32).clamp(0, 12) as usize;
    let text = format!("{value:.decimals$}");
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').into(),
        false => text,
    }
}

fn op_name(plan: &Plan, op: ReduceOp) -> &'static str {
    match op {
        _ if !plan.collective.is_reducing() => "none",
        // The column has six places; nccl-tests has the same word.
        ReduceOp::PremulSum(_) => "mulsum",
        other => ReduceOp::name_of_code(other.code()),
    }
}

fn root_name(plan: &Plan) -> String {
    match plan.collective.is_rooted() {
        true => plan.root.to_string(),
        false => "-1".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::args::tests::parse;
    use super::super::plan::build_plan;
    use super::super::plan::tests::facts;
    use super::super::statistics::Summary;
    use super::*;
    use linerate::DataType;

    fn plan(line: &str) -> Plan {
        build_plan(&parse(line).unwrap(), facts()).unwrap()
    }

    fn cell(time_us: f64, wrong: Option<u64>) -> Cell {
        Cell {
            algorithm: "ring".into(),
            iterations: 1,
            time_us: Summary::of(&[time_us]),
            algbw: 12.346,
            busbw: 6.1,
            wrong,
            profile: Vec::new(),
        }
    }

    fn measured(out_of_place: Option<Cell>, in_place: Option<Cell>) -> Measured {
        Measured {
            bytes: 1048576,
            count: 262144,
            dtype: DataType::F32,
            op: ReduceOp::PremulSum(2.0),
            out_of_place,
            in_place,
        }
    }

    #[test]
    fn a_row_has_the_columns_of_nccl_tests() {
        let row = row(
            &plan("allreduce"),
            &measured(Some(cell(84.936, Some(0))), Some(cell(12345.6, None))),
        );
        assert_eq!(
            row,
            "     1048576        262144       f32  mulsum      -1    84.94   12.35    6.10      0    12346   12.35    6.10    N/A\n"
        );
    }

    #[test]
    fn a_placement_that_is_not_asked_for_has_no_columns() {
        let plan = plan("allreduce --placement in-place --stats");
        let row = row(&plan, &measured(None, Some(cell(1.0, Some(0)))));
        assert!(row.contains("    1.00   12.35    6.10      0 "), "{row}");
        let header = header(&plan, "shm");
        assert_eq!(header.lines().last().unwrap().len(), row.len() - 1);
        assert!(!header.contains("out-of-place"), "{header}");
    }

    #[test]
    fn the_root_is_named_where_there_is_one() {
        let text = row(&plan("broadcast -r 1"), &measured(None, None));
        assert!(text.contains("  none       1"), "{text}");
    }

    #[test]
    fn titles_stand_over_their_columns() {
        for line in ["allreduce", "allreduce --stats"] {
            let plan = plan(line);
            let header = header(&plan, "shm");
            assert!(header.lines().all(|line| line.starts_with('#')), "{header}");
            assert!(header.contains("the slowest rank's time, each started after a barrier"));
            let cells = || Some(cell(1.0, Some(0)));
            let row = row(&plan, &measured(cells(), cells()));
            let widths: Vec<usize> = header.lines().rev().take(3).map(str::len).collect();
            assert_eq!(widths, [row.len() - 1; 3], "{header}{row}");
        }
    }

    #[test]
    fn the_footer_says_whether_all_was_right() {
        assert_eq!(
            footer(0, 12.3456789),
            "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 12.3457\n#\n"
        );
        assert!(footer(3, 0.0).contains("values : 3 FAILED"));
        assert!(footer(3, 0.0).contains("bandwidth    : 0\n"));
    }

    #[test]
    fn numbers_have_six_significant_digits() {
        let texts = [123456.7, 0.00123, 100.0, 1.5].map(significant);
        assert_eq!(texts, ["123457", "0.00123", "100", "1.5"]);
    }
}
