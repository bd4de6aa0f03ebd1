//! Draws a [`Chart`].

use super::axis::Span;
use super::{Chart, Point, Series};
use maud::{Markup, PreEscaped, html};

/// Size of everything but the legend, px.
const WIDTH: f64 = 640.0;
const TOP: f64 = 62.0;
const PLOT_HEIGHT: f64 = 270.0;
const RIGHT: f64 = 24.0;
/// From the plot to the line of the x axis's label, and to the legend's first line.
const LABEL_DOWN: f64 = 40.0;
const LEGEND_DOWN: f64 = 66.0;
const LEGEND_LINE: f64 = 20.0;
/// Room for the sample of a series beside its name.
const SAMPLE: f64 = 34.0;
const GAP: f64 = 18.0;
/// Width of a character of the text and of the title at most, on average, px.
const CHARACTER: f64 = 7.4;
const TITLE_CHARACTER: f64 = 8.8;
/// Longer names are cut.
const NAME_MAX: usize = 60;
/// Series that are drawn.
const SERIES_MAX: usize = 12;
/// A series with more points has no marks on them.
const MARKED_MAX: usize = 60;

/// After Okabe and Ito (2008), darkened until each has a contrast of 3 to white and to the dark
/// background.
const COLOURS: [&str; 6] = [
    "#0072b2", "#d55e00", "#009470", "#b85c93", "#9c7a00", "#777777",
];
/// The second round of colours is dashed.
const DASHES: [Option<&str>; 2] = [None, Some("7 4")];

/// Only of this class, so that other plots and text of a page stay as they are.
const STYLE: &str = "\
.plot{background:#fff;color:#222;font:13px sans-serif}\
.plot text{fill:currentColor}\
.plot .t{font-weight:bold;font-size:15px}\
.plot .a{stroke:currentColor;stroke-opacity:.18}\
.plot .l{fill:none;stroke-width:2}\
.plot .b{fill:none;stroke-width:1}\
@media (prefers-color-scheme:dark){.plot{background:#16191d;color:#e6e6e6}}\
@media print{.plot{background:#fff;color:#000}}";

/// Where values lie.
struct Frame {
    left: f64,
    x: Span,
    y: Span,
}

/// A series that is drawn.
struct Drawn<'a> {
    name: String,
    points: Vec<Point>,
    style: usize,
    of: &'a Series,
}

pub fn draw(chart: &Chart) -> Markup {
    let drawn: Vec<Drawn> = (chart.series.iter().take(SERIES_MAX).enumerate())
        .map(|(style, of)| Drawn {
            name: cut(&of.name, NAME_MAX),
            points: visible(chart, of),
            style,
            of,
        })
        .collect();
    let frame = Frame::of(chart, &drawn);
    let left_out = chart.series.len() - drawn.len();
    let (legend, legend_lines) = legend(&drawn, left_out);
    let height = TOP + PLOT_HEIGHT + LEGEND_DOWN + LEGEND_LINE * legend_lines as f64;
    let bottom = TOP + PLOT_HEIGHT;
    let middle = (frame.left + WIDTH - RIGHT) / 2.0;
    let title_max = ((WIDTH - 24.0) / TITLE_CHARACTER) as usize;
    let label_max = ((WIDTH - 24.0) / CHARACTER) as usize;
    let is_empty = drawn.iter().all(|series| series.points.is_empty());
    html! {
        svg xmlns="http://www.w3.org/2000/svg" class="plot" role="img" aria-label=(chart.title)
            width=(px(WIDTH)) height=(px(height)) viewBox={ "0 0 " (px(WIDTH)) " " (px(height)) } {
            title { (chart.title) }
            desc { (described(chart, &drawn)) }
            style { (PreEscaped(STYLE)) }
            text class="t" x="12" y="24" { (cut(&chart.title, title_max)) }
            text x="12" y="48" { (cut(&chart.y.label, label_max)) }
            @for (value, text) in &frame.y.ticks {
                @let y = frame.y_of(*value);
                path class="a" d={ "M" (px(frame.left)) " " (px(y)) "H" (px(WIDTH - RIGHT)) } {}
                text x=(px(frame.left - 8.0)) y=(px(y + 4.5)) text-anchor="end" { (text) }
            }
            @for (value, text) in &frame.x.ticks {
                @let x = frame.x_of(*value);
                path class="a" d={ "M" (px(x)) " " (px(TOP)) "V" (px(bottom + 5.0)) } {}
                text x=(px(x)) y=(px(bottom + 20.0)) text-anchor="middle" { (text) }
            }
            text x=(px(middle)) y=(px(bottom + LABEL_DOWN)) text-anchor="middle" {
                (cut(&chart.x.label, label_max))
            }
            @if is_empty {
                text x=(px(middle)) y=(px(TOP + PLOT_HEIGHT / 2.0)) text-anchor="middle" {
                    "no values"
                }
            }
            @for series in &drawn { (one(&frame, series)) }
            (legend)
        }
    }
}

/// A series: its line, its intervals, its marks.
fn one(frame: &Frame, series: &Drawn) -> Markup {
    let points = series.points.iter();
    let places: Vec<(f64, f64)> = points
        .map(|point| (frame.x_of(point.x), frame.y_of(point.y)))
        .collect();
    let line: Vec<String> = places.iter().map(|(x, y)| pair(*x, *y)).collect();
    let mut bars = String::new();
    for (point, (x, _)) in series.points.iter().zip(&places) {
        if let Some((low, high)) = point.interval {
            let (low, high) = (frame.y_of(low), frame.y_of(high));
            for y in [low, high] {
                bars += &format!("M{}h6", pair(x - 3.0, y));
            }
            bars += &format!("M{}V{}", pair(*x, low), px(high));
        }
    }
    let is_marked = !series.of.is_joined || places.len() <= MARKED_MAX;
    let marks = places.iter().filter(|_| is_marked);
    let marks: String = marks.map(|(x, y)| mark(series.style, *x, *y)).collect();
    let colour = colour(series.style);
    html! {
        g stroke=(colour) fill=(colour) {
            title { (series.name) }
            @if series.of.is_joined {
                polyline class="l" stroke-dasharray=[dash(series.style)] points=(line.join(" ")) {}
            }
            @if !bars.is_empty() { path class="b" d=(bars) {} }
            @if !marks.is_empty() { path d=(marks) {} }
        }
    }
}

/// The legend, and how many lines it has.
fn legend(drawn: &[Drawn], left_out: usize) -> (Markup, usize) {
    let top = TOP + PLOT_HEIGHT + LEGEND_DOWN;
    let more = (left_out > 0).then(|| format!("and {left_out} more, which are not drawn"));
    let names = drawn.iter().map(|series| (&series.name, Some(series)));
    let names = names.chain(more.iter().map(|more| (more, None)));
    let (mut x, mut line) = (12.0, 0);
    let mut entries = Vec::new();
    for (name, series) in names {
        let width = SAMPLE + CHARACTER * name.chars().count() as f64;
        if x > 12.0 && x + width > WIDTH - 12.0 {
            (x, line) = (12.0, line + 1);
        }
        let y = top + LEGEND_LINE * f64::from(line);
        entries.push(html! {
            @if let Some(series) = series {
                @let colour = colour(series.style);
                g stroke=(colour) fill=(colour) {
                    @if series.of.is_joined {
                        path class="l" stroke-dasharray=[dash(series.style)]
                            d={ "M" (pair(x, y - 4.5)) "h28" } {}
                    }
                    path d=(mark(series.style, x + 14.0, y - 4.5)) {}
                }
            }
            text x=(px(x + SAMPLE)) y=(px(y)) { (name) }
        });
        x += width + GAP;
    }
    let lines = if entries.is_empty() {
        0
    } else {
        line as usize + 1
    };
    (html! { @for entry in entries { (entry) } }, lines)
}

impl Frame {
    fn of(chart: &Chart, drawn: &[Drawn]) -> Frame {
        let points = || drawn.iter().flat_map(|series| &series.points);
        let ends = |point: &Point| {
            let (low, high) = point.interval.unwrap_or((point.y, point.y));
            [low, point.y, high]
        };
        let x = Span::of(chart.x.scale, points().map(|point| point.x));
        let y = Span::of(chart.y.scale, points().flat_map(ends));
        let longest = y.ticks.iter().map(|(_, text)| text.len()).max();
        Frame {
            left: 24.0 + CHARACTER * longest.unwrap_or(0) as f64,
            x,
            y,
        }
    }

    fn x_of(&self, value: f64) -> f64 {
        self.left + self.x.place(value) * (WIDTH - RIGHT - self.left)
    }

    fn y_of(&self, value: f64) -> f64 {
        TOP + (1.0 - self.y.place(value)) * PLOT_HEIGHT
    }
}

/// The points that both axes have a place for; an interval is left out where an end has none.
fn visible(chart: &Chart, series: &Series) -> Vec<Point> {
    let (x, y) = (chart.x.scale, chart.y.scale);
    let points = series.points.iter();
    let points = points.filter(|point| x.has(point.x) && y.has(point.y));
    points
        .map(|point| Point {
            interval: point
                .interval
                .filter(|(low, high)| y.has(*low) && y.has(*high)),
            ..*point
        })
        .collect()
}

/// For those who do not see it.
fn described(chart: &Chart, drawn: &[Drawn]) -> String {
    let mut text = format!("{} over {}.", chart.y.label, chart.x.label);
    for series in drawn {
        let count = series.points.len();
        let ends = series.points.first().zip(series.points.last());
        text += &match ends {
            Some((first, last)) => format!(
                " {}: {count} points, from {} at {} to {} at {}.",
                series.name,
                short(first.y),
                short(first.x),
                short(last.y),
                short(last.x)
            ),
            None => format!(" {}: no points.", series.name),
        };
    }
    text
}

fn colour(style: usize) -> &'static str {
    COLOURS[style % COLOURS.len()]
}

fn dash(style: usize) -> Option<&'static str> {
    DASHES[style / COLOURS.len() % DASHES.len()]
}

/// Circle, square, triangle, diamond, cross: the path of a mark.
fn mark(style: usize, x: f64, y: f64) -> String {
    let from = |dx: f64, dy: f64| pair(x + dx, y + dy);
    match style % 5 {
        0 => format!("M{}a3 3 0 1 0 6 0a3 3 0 1 0-6 0", from(-3.0, 0.0)),
        1 => format!("M{}h6v6h-6z", from(-3.0, -3.0)),
        2 => format!("M{}l4 7h-8z", from(0.0, -4.0)),
        3 => format!("M{}l4 4-4 4-4-4z", from(0.0, -4.0)),
        _ => format!("M{}l6 6m0-6l-6 6", from(-3.0, -3.0)),
    }
}

fn pair(x: f64, y: f64) -> String {
    format!("{} {}", px(x), px(y))
}

/// A tenth of a pixel is enough.
fn px(value: f64) -> String {
    let tenths = (value * 10.0).round() / 10.0;
    // Without the sign of a negative zero.
    format!("{}", tenths + 0.0)
}

/// Four digits are enough.
fn short(value: f64) -> String {
    match value.abs() {
        size if size == 0.0 || (1e-3..1e6).contains(&size) => {
            format!("{}", (value * 1e4).round() / 1e4)
        }
        _ => format!("{value:.3e}"),
    }
}

fn cut(text: &str, characters_max: usize) -> String {
    if text.chars().count() <= characters_max {
        return text.into();
    }
    text.chars().take(characters_max - 1).chain(['…']).collect()
}

#[cfg(test)]
#[path = "draw_tests.rs"]
mod tests;
