//! [`Chart`]: lines over two axes, as SVG.

use linerate_job::plot::{self, Axis, Scale, Series};
use std::path::Path;

/// One line and its name.
#[derive(Clone, Debug)]
pub struct Line {
    pub name: String,
    pub points: Vec<(f64, f64)>,
}

/// Lines over two axes, both linear.
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
        let lines = self.lines.iter();
        let chart = plot::Chart {
            title: self.title.clone(),
            x: Axis::new(Scale::Linear, &*self.x),
            y: Axis::new(Scale::Linear, &*self.y),
            series: lines
                .map(|line| Series::line(&*line.name, line.points.iter().copied()))
                .collect(),
        };
        std::fs::write(path, chart.svg()).map_err(|cause| format!("'{}': {cause}", path.display()))
    }
}
