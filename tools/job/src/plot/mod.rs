//! [`Chart`]: lines and points over two axes, as one SVG element.
//!
//! It can be read in print, in light and dark, and by the colour-blind: series differ in colour, in
//! the shape of their marks and in dashes. It is drawn in `draw.rs`; where ticks are is decided in
//! `axis.rs`.

mod axis;
mod draw;
mod figure;
mod group;

pub use axis::{Axis, Scale};
pub use figure::{PlotPoint, charts};
pub use group::group;

use maud::Markup;

/// Series and axes.
#[derive(Clone, Debug)]
pub struct Chart {
    /// What it shows.
    pub title: String,
    /// To the right.
    pub x: Axis,
    /// Upwards.
    pub y: Axis,
    /// What is drawn; those beyond the first 12 are only counted.
    pub series: Vec<Series>,
}

/// Points that belong together.
#[derive(Clone, Debug)]
pub struct Series {
    /// What the legend says.
    pub name: String,
    /// Lines join them in this order. Those that an axis has no place for are left out.
    pub points: Vec<Point>,
    /// Whether a line joins them, or they stand alone, as measured points do.
    pub is_joined: bool,
}

/// A value at a place.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// To the right.
    pub x: f64,
    /// Upwards.
    pub y: f64,
    /// From where to where the value may be.
    pub interval: Option<(f64, f64)>,
}

impl From<(f64, f64)> for Point {
    fn from((x, y): (f64, f64)) -> Point {
        Point {
            x,
            y,
            interval: None,
        }
    }
}

impl Series {
    /// Points that a line joins.
    pub fn line(
        name: impl Into<String>,
        points: impl IntoIterator<Item = impl Into<Point>>,
    ) -> Series {
        Series {
            name: name.into(),
            points: points.into_iter().map(Into::into).collect(),
            is_joined: true,
        }
    }
}

impl Chart {
    /// The chart as an SVG element, which is well-formed XML and HTML too.
    pub fn markup(&self) -> Markup {
        draw::draw(self)
    }

    /// Whether there are points at two places of the x axis at least.
    pub fn is_worth_drawing(&self) -> bool {
        let mut points = self.series.iter().flat_map(|series| &series.points);
        let first = points.next();
        first.is_some_and(|first| points.any(|point| point.x != first.x))
    }

    /// The chart as an SVG document, with one element on each line.
    pub fn svg(&self) -> String {
        // Text and attributes have neither of these characters: they are escaped there.
        let text = self.markup().into_string();
        let text = text.replace("></path>", "/>");
        let text = text.replace("></polyline>", "/>");
        text.replace("><", ">\n<")
    }
}
