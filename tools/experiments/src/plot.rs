//! [`Chart`]: lines over two axes, as SVG.

use plotters::prelude::*;
use std::ops::Range;
use std::path::Path;

const SIZE: (u32, u32) = (800, 500);
const FONT: &str = "sans-serif";

/// One line and its name.
#[derive(Clone, Debug)]
pub struct Line {
    pub name: String,
    pub points: Vec<(f64, f64)>,
}

/// Lines over two axes.
#[derive(Clone, Debug)]
pub struct Chart {
    pub title: String,
    pub x: String,
    pub y: String,
    pub lines: Vec<Line>,
}

/// Makes the folder that `--plots` names, where it is missing.
pub fn make_folder(folder: Option<&Path>) -> Result<(), String> {
    folder.map_or(Ok(()), |folder| {
        std::fs::create_dir_all(folder)
            .map_err(|cause| format!("--plots '{}': {cause}", folder.display()))
    })
}

impl Chart {
    /// Draws it into a file.
    pub fn write(&self, path: &Path) -> Result<(), String> {
        let text = self.svg()?;
        std::fs::write(path, text).map_err(|cause| format!("'{}': {cause}", path.display()))
    }

    /// The chart as SVG.
    pub fn svg(&self) -> Result<String, String> {
        let mut text = String::new();
        let root = SVGBackend::with_string(&mut text, SIZE).into_drawing_area();
        let drawn = self.draw(&root).and_then(|()| root.present().map_err(say));
        drop(root);
        drawn.map(|()| text)
    }

    fn draw(
        &self,
        root: &DrawingArea<SVGBackend<'_>, plotters::coord::Shift>,
    ) -> Result<(), String> {
        let points = || self.lines.iter().flat_map(|line| &line.points);
        root.fill(&WHITE).map_err(say)?;
        let mut chart = ChartBuilder::on(root)
            .caption(&self.title, (FONT, 20))
            .margin(12)
            .x_label_area_size(40)
            .y_label_area_size(64)
            .build_cartesian_2d(
                span(points().map(|point| point.0)),
                span(points().map(|point| point.1)),
            )
            .map_err(say)?;
        let mut mesh = chart.configure_mesh();
        mesh.x_desc(&self.x).y_desc(&self.y).draw().map_err(say)?;
        for (index, line) in self.lines.iter().enumerate() {
            let color = Palette99::pick(index).stroke_width(2);
            let series = LineSeries::new(line.points.iter().copied(), color);
            chart
                .draw_series(series)
                .map_err(say)?
                .label(&line.name)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], color));
        }
        chart
            .configure_series_labels()
            .background_style(WHITE.mix(0.8))
            .border_style(BLACK)
            .draw()
            .map_err(say)
    }
}

/// From the least to the greatest, and never empty.
fn span(values: impl Iterator<Item = f64>) -> Range<f64> {
    let finite = values.filter(|value| value.is_finite());
    let (low, high) = finite.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| {
        (low.min(value), high.max(value))
    });
    if low > high {
        return 0.0..1.0;
    }
    let room = (high - low).max(1e-9 * high.abs()).max(1e-12) * 0.04;
    low - room..high + room
}

fn say(cause: impl std::fmt::Display) -> String {
    format!("the plot cannot be drawn: {cause}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(points: Vec<(f64, f64)>) -> Chart {
        Chart {
            title: "loss & time".into(),
            x: "seconds".into(),
            y: "loss".into(),
            lines: vec![Line {
                name: "solo".into(),
                points,
            }],
        }
    }

    #[test]
    fn a_line_and_its_name_are_in_the_picture() {
        let text = chart(vec![(0.0, 2.0), (1.0, 1.0), (2.0, 0.5)])
            .svg()
            .unwrap();
        assert!(text.starts_with("<svg") && text.trim_end().ends_with("</svg>"));
        let has_line = text.contains("<polyline");
        assert!(has_line && text.contains("solo") && text.contains("seconds"));
        assert!(text.contains("loss &amp; time"), "{text}");
    }

    #[test]
    fn a_picture_without_points_is_still_one() {
        for points in [vec![], vec![(1.0, 1.0)], vec![(0.0, f64::NAN), (1.0, 2.0)]] {
            assert!(chart(points).svg().unwrap().contains("</svg>"));
        }
    }
}
