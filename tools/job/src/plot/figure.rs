//! [`PlotPoint`]: a row of an experiment's document that a plot shows.

use super::{Axis, Chart, Scale, Series};
use serde::{Deserialize, Serialize};

/// A point, and where it is drawn.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PlotPoint {
    /// The title of its plot.
    pub figure: String,
    /// What the legend calls the points to which it belongs.
    pub series: String,
    /// Whether it stands alone, as measured values do, or a line joins it to others.
    pub is_measured: bool,
    /// What is on the x axis.
    pub x_label: String,
    /// Whether equal distances there are equal ratios.
    pub is_x_log: bool,
    /// To the right.
    pub x: f64,
    /// What is on the y axis.
    pub y_label: String,
    /// Upwards.
    pub y: f64,
}

/// The plots of these points, in the order in which they come.
pub fn charts(points: &[PlotPoint]) -> Vec<Chart> {
    let mut charts: Vec<Chart> = Vec::new();
    for point in points {
        let found = charts.iter().position(|chart| chart.title == point.figure);
        let at = found.unwrap_or_else(|| {
            let scale = match point.is_x_log {
                true => Scale::Log,
                false => Scale::Linear,
            };
            charts.push(Chart {
                title: point.figure.clone(),
                x: Axis::new(scale, &*point.x_label),
                y: Axis::new(Scale::FromZero, &*point.y_label),
                series: Vec::new(),
            });
            charts.len() - 1
        });
        let all = &mut charts[at].series;
        let found = all.iter().position(|series| series.name == point.series);
        let series = found.unwrap_or_else(|| {
            all.push(Series {
                name: point.series.clone(),
                points: Vec::new(),
                is_joined: !point.is_measured,
            });
            all.len() - 1
        });
        all[series].points.push((point.x, point.y).into());
    }
    charts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_are_grouped_by_figure_and_series() {
        let point = |figure: &str, series: &str, is_measured, x| PlotPoint {
            figure: figure.into(),
            series: series.into(),
            is_measured,
            x_label: "GPUs".into(),
            is_x_log: true,
            x,
            y_label: "scaling factor".into(),
            y: 0.5,
        };
        let charts = charts(&[
            point("one", "model", false, 1.0),
            point("two", "model", false, 2.0),
            point("one", "measured", true, 3.0),
            point("one", "model", false, 4.0),
        ]);
        let titles: Vec<_> = charts.iter().map(|chart| &*chart.title).collect();
        assert_eq!(titles, ["one", "two"]);
        let series = &charts[0].series;
        assert_eq!((series[0].points.len(), series[0].is_joined), (2, true));
        assert_eq!((&*series[1].name, series[1].is_joined), ("measured", false));
    }
}
