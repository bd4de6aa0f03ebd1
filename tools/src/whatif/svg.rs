//! The plot of `whatif`: the scaling factor over what has several values, one line for each
//! combination of the rest.

use super::fit::Point as Measured;
use linerate_job::plot::{Axis, Chart, Point, Scale, Series, group};
use serde::Deserialize;

/// What a plot needs of a row of the document, by the names that the document has.
#[derive(Clone, Debug, Deserialize)]
pub struct Row {
    n: u32,
    /// `null`: infinite.
    bandwidth_gbps: Option<f64>,
    compression: f64,
    algorithm: String,
    scaling_factor: f64,
    /// Between which factors the predicted one may lie, where that is known.
    #[serde(default)]
    low: Option<f64>,
    #[serde(default)]
    high: Option<f64>,
}

/// What is on the x axis.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Over {
    Bandwidth,
    Compression,
    Workers,
}

impl Row {
    fn bandwidth(&self) -> f64 {
        self.bandwidth_gbps.unwrap_or(f64::INFINITY)
    }

    fn x(&self, over: Over) -> f64 {
        match over {
            Over::Bandwidth => self.bandwidth(),
            Over::Compression => self.compression,
            Over::Workers => f64::from(self.n),
        }
    }

    /// What a reader is told of a row, but for the value on the x axis.
    fn parts(&self, over: Over) -> Vec<String> {
        let gpus = format!("{} GPUs", self.n);
        let gbit = match self.bandwidth_gbps {
            Some(gbit) => format!("{gbit} Gbit/s"),
            None => "infinite bandwidth".into(),
        };
        let compression = format!("compression {}", self.compression);
        let parts = [
            (over != Over::Workers, gpus),
            (over != Over::Bandwidth, gbit),
            (over != Over::Compression, compression),
            (true, self.algorithm.clone()),
        ];
        let parts = parts.into_iter().filter(|(is_told, _)| *is_told);
        parts.map(|(_, part)| part).collect()
    }
}

/// The plot of these rows, with measured factors beside them. On the x axis is the bandwidth,
/// unless only compression or only workers have several values.
pub fn chart(model: &str, rows: &[Row], measured: &[Measured]) -> Chart {
    let has_several = |of: &dyn Fn(&Row) -> f64| rows.iter().any(|row| of(row) != of(&rows[0]));
    let orders = [Over::Bandwidth, Over::Compression, Over::Workers];
    let over = orders
        .into_iter()
        .find(|over| has_several(&|row| row.x(*over)))
        .unwrap_or(Over::Bandwidth);
    let points = rows.iter().map(|row| {
        let point = Point {
            x: row.x(over),
            y: row.scaling_factor,
            interval: row.low.zip(row.high),
        };
        (row.parts(over), point)
    });
    let has_interval = |point: &Point| point.interval.is_some();
    let (in_common, mut series) = group(points, "predicted");
    let x = match over {
        Over::Bandwidth => "bandwidth, Gbit/s",
        Over::Compression => "compression",
        Over::Workers => "GPUs",
    };
    let y = match series.iter().flat_map(|one| &one.points).any(has_interval) {
        true => "scaling factor (bars: where it may lie)",
        false => "scaling factor",
    };
    let measured = measured.iter().filter_map(|one| match over {
        Over::Bandwidth => Some((one.bandwidth_gbps, one.measured)),
        Over::Workers => Some((f64::from(one.n), one.measured)),
        Over::Compression => None,
    });
    let measured = Series {
        is_joined: false,
        ..Series::line("measured", measured)
    };
    if !measured.points.is_empty() {
        series.push(measured);
    }
    Chart {
        title: format!("Predicted scaling of {model}: {in_common}"),
        x: Axis::new(Scale::Log, x),
        y: Axis::new(Scale::FromZero, y),
        series,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(n: u32, bandwidth_gbps: f64, compression: f64) -> Row {
        Row {
            n,
            bandwidth_gbps: Some(bandwidth_gbps).filter(|gbit| gbit.is_finite()),
            compression,
            algorithm: "ring".into(),
            scaling_factor: 0.5,
            low: Some(0.4),
            high: None,
        }
    }

    fn names(chart: &Chart) -> Vec<&str> {
        chart.series.iter().map(|series| &*series.name).collect()
    }

    #[test]
    fn bandwidth_comes_first_then_compression_then_workers() {
        let rows = [row(8, 10.0, 1.0), row(8, 1.0, 1.0), row(64, 10.0, 1.0)];
        let of = chart("vgg16", &rows, &[]);
        assert_eq!(of.x.label, "bandwidth, Gbit/s");
        assert_eq!(of.title, "Predicted scaling of vgg16: compression 1, ring");
        assert_eq!(names(&of), ["8 GPUs", "64 GPUs"]);
        let x: Vec<f64> = of.series[0].points.iter().map(|point| point.x).collect();
        assert_eq!(x, [1.0, 10.0]);

        let rows = [row(8, 10.0, 1.0), row(8, 10.0, 4.0), row(64, 10.0, 4.0)];
        let of = chart("vgg16", &rows, &[]);
        assert_eq!(of.x.label, "compression");
        assert_eq!(names(&of), ["8 GPUs", "64 GPUs"]);

        let of = chart(
            "vgg16",
            &[row(8, f64::INFINITY, 1.0), row(64, f64::INFINITY, 1.0)],
            &[],
        );
        assert_eq!(
            (&*of.x.label, &*of.title),
            (
                "GPUs",
                "Predicted scaling of vgg16: infinite bandwidth, compression 1, ring"
            )
        );
        assert_eq!(names(&of), ["predicted"]);
        assert_eq!(of.series[0].points[1], Point::from((64.0, 0.5)));
    }

    #[test]
    fn measured_factors_stand_alone_beside_the_lines() {
        let measured = Measured {
            bandwidth_gbps: 10.0,
            n: 8,
            measured: 0.4,
            ideal: 0.5,
            left_out: 0.41,
        };
        let rows = [row(8, 10.0, 1.0), row(8, 1.0, 1.0)];
        let of = chart("vgg16", &rows, &[measured]);
        let last = of.series.last().unwrap();
        assert_eq!((&*last.name, last.is_joined), ("measured", false));
        assert_eq!(last.points, [Point::from((10.0, 0.4))]);
    }

    #[test]
    fn an_interval_needs_both_ends() {
        let row = Row {
            high: Some(0.6),
            ..row(8, 10.0, 1.0)
        };
        let of = chart("vgg16", &[row], &[]);
        assert_eq!(of.series[0].points[0].interval, Some((0.4, 0.6)));
        assert_eq!(of.y.label, "scaling factor (bars: where it may lie)");
        assert!(chart("vgg16", &[], &[]).series.is_empty());
    }
}
