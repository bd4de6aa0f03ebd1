//! Which plots a document has.

use super::read::Document;
use crate::whatif::svg;
use linerate_job::plot::{self, Axis, Chart, PlotPoint, Point, Scale, Series, group};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::collections::BTreeSet;

/// A result of `bench`, also of its sparse and push-pull sweeps.
#[derive(Clone, Deserialize)]
struct BenchRow {
    collective: String,
    bytes: f64,
    dtype: String,
    op: Option<String>,
    algorithm: Option<String>,
    in_place: Option<bool>,
    time_us: Times,
    algbw: f64,
    /// Push-pull has none.
    busbw: Option<f64>,
}

#[derive(Clone, Copy, Deserialize)]
struct Times {
    min: f64,
    p50: f64,
    p90: f64,
}

#[derive(Deserialize)]
struct PerfRow {
    bytes: f64,
    /// `null` for latencies.
    bw: Option<f64>,
    bw_peak: Option<f64>,
    bw_achievable: Option<f64>,
    /// `null` for bandwidths.
    time_us: Option<Times>,
}

/// A result of `sim`: its times are virtual.
#[derive(Deserialize)]
struct SimRow {
    collective: String,
    bytes: f64,
    algorithm: String,
    time_us: f64,
    algbw: f64,
    busbw: f64,
}

#[derive(Deserialize)]
struct StepRow {
    step_ms: f64,
    exposed_ms: f64,
}

impl From<SimRow> for BenchRow {
    fn from(row: SimRow) -> BenchRow {
        let us = row.time_us;
        BenchRow {
            collective: row.collective,
            bytes: row.bytes,
            dtype: String::new(),
            op: None,
            algorithm: Some(row.algorithm),
            in_place: None,
            time_us: Times {
                min: us,
                p50: us,
                p90: us,
            },
            algbw: row.algbw,
            busbw: Some(row.busbw),
        }
    }
}

/// The plots of a document that show more than one point. The error says which result is not as its
/// command writes it.
pub fn build(document: &Document) -> Result<Vec<Chart>, String> {
    let text = |name| document.fields.get(name).and_then(Value::as_str);
    let charts = match document.command.as_str() {
        "bench" => bench(&rows(document, "results")?),
        "sim" => {
            let rows: Vec<SimRow> = rows(document, "results")?;
            let rows: Vec<BenchRow> = rows.into_iter().map(BenchRow::from).collect();
            let mut charts = bench(&rows);
            // Virtual times have no spread.
            charts.truncate(1);
            charts
        }
        "perf" => perf(text("test").unwrap_or("perf"), &rows(document, "results")?),
        "replay" if document.fields.contains_key("steps") => {
            vec![replay(&rows(document, "steps")?)]
        }
        "experiment" => {
            // Other experiments have rows that are no points of a plot.
            let has_points = |name: &&&str| {
                let rows = document.fields.get(**name);
                rows.is_some_and(|rows| rows[0].get("figure").is_some_and(Value::is_string))
            };
            match ["points", "results"].iter().find(has_points) {
                Some(name) => plot::charts(&rows::<PlotPoint>(document, name)?),
                None => Vec::new(),
            }
        }
        "whatif" => {
            let model = text("model").unwrap_or("whatif");
            let fit = document.fields.get("fit");
            let points = fit.and_then(|fit| fit.get("points"));
            let measured = match points {
                Some(points) => serde_json::from_value(points.clone())
                    .map_err(|cause| format!("'fit': {cause}"))?,
                None => Vec::new(),
            };
            vec![svg::chart(model, &rows(document, "results")?, &measured)]
        }
        _ => Vec::new(),
    };
    Ok(charts.into_iter().filter(Chart::is_worth_drawing).collect())
}

/// The rows of a list.
fn rows<T: DeserializeOwned>(document: &Document, name: &str) -> Result<Vec<T>, String> {
    let Some(Value::Array(items)) = document.fields.get(name) else {
        return Err(format!("'{name}' is no list"));
    };
    let row = |(at, item)| T::deserialize(item).map_err(|cause| format!("{name}[{at}]: {cause}"));
    items.iter().enumerate().map(row).collect()
}

fn bench(rows: &[BenchRow]) -> Vec<Chart> {
    let parts = |row: &BenchRow, is_by_algorithm: bool| {
        let mut parts = vec![row.collective.clone(), row.dtype.clone()];
        parts.push(row.op.clone().unwrap_or_default());
        parts.push(match row.in_place {
            Some(true) => "in place".into(),
            Some(false) => "out of place".into(),
            None => String::new(),
        });
        let algorithm = row.algorithm.clone().filter(|_| is_by_algorithm);
        parts.push(algorithm.unwrap_or_default());
        parts
    };
    // The automatic choice takes another one for each size, which is one line. Several of one size
    // were asked for.
    let mut seen = BTreeSet::new();
    let is_new = |row: &BenchRow| seen.insert((parts(row, false), row.bytes.to_bits()));
    let is_by_algorithm = !rows.iter().all(is_new);
    let is_bus = rows.iter().all(|row| row.busbw.is_some());
    let bandwidth = |row: &BenchRow| Point::from((row.bytes, row.busbw.unwrap_or(row.algbw)));
    let time = |row: &BenchRow| with_times(row.bytes, row.time_us);
    let plot = |point: &dyn Fn(&BenchRow) -> Point, y: Axis, what: &str| {
        let points = rows
            .iter()
            .map(|row| (parts(row, is_by_algorithm), point(row)));
        let (in_common, series) = group(points, "measured");
        Chart {
            title: format!("{what}: {in_common}"),
            x: Axis::new(Scale::Bytes, "size"),
            y,
            series,
        }
    };
    let (what, y) = match is_bus {
        true => ("Bus bandwidth", "bus bandwidth, GB/s"),
        false => ("Bandwidth", "algorithm bandwidth, GB/s"),
    };
    vec![
        plot(&bandwidth, Axis::new(Scale::FromZero, y), what),
        plot(&time, Axis::new(Scale::Log, TIME), "Time"),
    ]
}

const TIME: &str = "time, us (median; from minimum to 90th percentile)";

fn with_times(x: f64, times: Times) -> Point {
    Point {
        x,
        y: times.p50,
        interval: Some((times.min, times.p90)),
    }
}

fn perf(test: &str, rows: &[PerfRow]) -> Vec<Chart> {
    let line = |name: &str, of: &dyn Fn(&PerfRow) -> Option<Point>| {
        Series::line(name, rows.iter().filter_map(of))
    };
    let at = |row: &PerfRow, value: Option<f64>| Some(Point::from((row.bytes, value?)));
    let bandwidths = vec![
        line("average", &|row| at(row, row.bw)),
        line("peak", &|row| at(row, row.bw_peak)),
        line("achievable", &|row| at(row, row.bw_achievable)),
    ];
    let times = vec![line("measured", &|row| {
        row.time_us.map(|times| with_times(row.bytes, times))
    })];
    let plot = |what: &str, y: Axis, series: Vec<Series>| Chart {
        title: format!("{what}: {test}"),
        x: Axis::new(Scale::Bytes, "size"),
        y,
        series: series
            .into_iter()
            .filter(|s| !s.points.is_empty())
            .collect(),
    };
    vec![
        plot(
            "Bandwidth",
            Axis::new(Scale::FromZero, "bandwidth, GB/s"),
            bandwidths,
        ),
        plot("Latency", Axis::new(Scale::Log, TIME), times),
    ]
}

fn replay(rows: &[StepRow]) -> Chart {
    let line = |name: &str, of: fn(&StepRow) -> f64| {
        let numbers = (1..).map(f64::from);
        Series::line(name, numbers.zip(rows.iter().map(of)))
    };
    Chart {
        title: "Time of each step".into(),
        x: Axis::new(Scale::Linear, "step"),
        y: Axis::new(Scale::FromZero, "time, ms"),
        series: vec![
            line("step", |row| row.step_ms),
            line("communication that nothing hides", |row| row.exposed_ms),
        ],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn charts(command: &str, fields: Value) -> Result<Vec<Chart>, String> {
        let Value::Object(fields) = fields else {
            panic!("an object");
        };
        build(&Document {
            file: "x.json".into(),
            command: command.into(),
            command_line: String::new(),
            fields,
        })
    }

    fn bench_row(bytes: u64, algorithm: &str) -> Value {
        json!({
            "collective": "allreduce", "bytes": bytes, "dtype": "f32", "op": "sum", "in_place": true,
            "algorithm": algorithm, "time_us": {"min": 1.0, "p50": 2.0, "p90": 4.0}, "algbw": 3.0, "busbw": 5.0,
        })
    }

    #[test]
    fn a_sweep_is_one_line_though_its_algorithm_changes() {
        let rows = [bench_row(8, "line"), bench_row(1024, "ring")];
        let charts = charts("bench", json!({ "results": rows })).unwrap();
        assert_eq!(charts.len(), 2);
        assert_eq!(
            charts[0].title,
            "Bus bandwidth: allreduce, f32, sum, in place"
        );
        assert_eq!(charts[0].series.len(), 1);
        assert_eq!(charts[0].series[0].points[1], Point::from((1024.0, 5.0)));
        assert_eq!(charts[1].series[0].points[0].interval, Some((1.0, 4.0)));
    }

    #[test]
    fn several_algorithms_of_one_size_are_several_lines() {
        let sizes = [8, 1024];
        let rows = sizes.map(|bytes| ["line", "ring"].map(|name| bench_row(bytes, name)));
        let charts = charts("bench", json!({ "results": rows.concat() })).unwrap();
        let names: Vec<_> = charts[0].series.iter().map(|s| s.name.as_str()).collect();
        assert_eq!(names, ["line", "ring"]);
    }

    #[test]
    fn a_result_that_lacks_a_number_is_named() {
        let error = charts(
            "bench",
            json!({"results": [bench_row(8, "a"), {"bytes": 8}]}),
        );
        assert!(error.unwrap_err().starts_with("results[1]: missing field"));
        let error = charts("whatif", json!({"results": 3})).unwrap_err();
        assert_eq!(error, "'results' is no list");
    }

    #[test]
    fn one_size_is_no_plot() {
        let charts = charts("bench", json!({"results": [bench_row(8, "line")]}));
        assert!(charts.unwrap().is_empty());
    }
}
