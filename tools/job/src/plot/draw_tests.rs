//! Plots as a reader of XML sees them: points lie where the ticks say, and nothing is cut off.

use super::super::{Axis, Chart, Point, Scale, Series};
use super::{COLOURS, SERIES_MAX, WIDTH};
use roxmltree::{Document, Node};

fn chart(series: Vec<Series>) -> Chart {
    Chart {
        title: "a <title> & more".into(),
        x: Axis::new(Scale::Log, "bandwidth, Gbit/s"),
        y: Axis::new(Scale::FromZero, "scaling factor"),
        series,
    }
}

fn number(node: Node, name: &str) -> f64 {
    node.attribute(name).unwrap().parse().unwrap()
}

/// Where the text stands.
fn text_at(document: &Document, text: &str) -> (f64, f64) {
    let is_it = |node: &Node| node.has_tag_name((NAMESPACE, "text")) && node.text() == Some(text);
    let node = document.descendants().find(is_it);
    let node = node.unwrap_or_else(|| panic!("no text {text}"));
    (number(node, "x"), number(node, "y"))
}

fn all<'a>(document: &'a Document, tag: &'a str) -> impl Iterator<Item = Node<'a, 'a>> {
    let nodes = document.descendants();
    nodes.filter(move |node| node.has_tag_name((NAMESPACE, tag)))
}

const NAMESPACE: &str = "http://www.w3.org/2000/svg";

#[test]
fn points_lie_where_the_ticks_say() {
    let line = Series::line("ring", [(1.0, 0.2), (10.0, 0.6), (100.0, 1.0)]);
    let svg = chart(vec![line]).svg();
    let document = Document::parse(&svg).unwrap();
    let points = all(&document, "polyline")
        .next()
        .unwrap()
        .attribute("points");
    let places: Vec<f64> = (points.unwrap().split(' ').map(|n| n.parse().unwrap())).collect();
    for (at, (x, y)) in [("1", "0.2"), ("10", "0.6"), ("100", "1.0")]
        .into_iter()
        .enumerate()
    {
        let (tick_x, (_, tick_y)) = (text_at(&document, x).0, text_at(&document, y));
        assert!((places[2 * at] - tick_x).abs() <= 0.11, "{x}: {places:?}");
        // The text's middle is at the line of its tick.
        assert!(
            (places[2 * at + 1] - (tick_y - 4.5)).abs() <= 0.11,
            "{y}: {places:?}"
        );
    }
}

#[test]
fn a_title_a_description_axes_and_a_legend_are_text() {
    let svg = chart(vec![Series::line("<b>", [(1.0, 0.5)])]).svg();
    let document = Document::parse(&svg).unwrap();
    let root = document.root_element();
    assert_eq!(root.attribute("aria-label"), Some("a <title> & more"));
    let text = |tag| all(&document, tag).next().unwrap().text();
    assert_eq!(text("title"), Some("a <title> & more"));
    assert!(
        text("desc")
            .unwrap()
            .contains("<b>: 1 points, from 0.5 at 1")
    );
    for text in [
        "a <title> & more",
        "bandwidth, Gbit/s",
        "scaling factor",
        "<b>",
    ] {
        text_at(&document, text);
    }
    assert!(svg.contains("prefers-color-scheme:dark"));
}

#[test]
fn intervals_go_from_low_to_high_and_measured_points_have_no_line() {
    let measured = Series {
        is_joined: false,
        ..Series::line(
            "measured",
            [Point {
                x: 10.0,
                y: 0.5,
                interval: Some((0.4, 0.8)),
            }],
        )
    };
    let svg = chart(vec![measured]).svg();
    let document = Document::parse(&svg).unwrap();
    assert_eq!(all(&document, "polyline").count(), 0);
    let mut bars = all(&document, "path").filter(|node| node.attribute("class") == Some("b"));
    let bar = bars.next().unwrap().attribute("d").unwrap();
    for tick in ["0.4", "0.8"] {
        let y = text_at(&document, tick).1 - 4.5;
        assert!(
            bar.contains(&format!(" {}", super::px(y))),
            "{tick} {y}: {bar}"
        );
    }
}

#[test]
fn the_legend_breaks_into_lines_and_series_beyond_the_most_are_counted() {
    let name = |at: usize| format!("compression {at}, by 64 GPUs that are far away");
    let series = (0..SERIES_MAX + 3).map(|at| Series::line(name(at), [(1.0, 0.5), (2.0, 0.6)]));
    let svg = chart(series.collect()).svg();
    let document = Document::parse(&svg).unwrap();
    let height = number(document.root_element(), "height");
    for at in 0..SERIES_MAX {
        let (x, y) = text_at(&document, &name(at));
        let end = x + super::CHARACTER * name(at).len() as f64;
        assert!(x > 0.0 && end < WIDTH && y < height, "{at}: {x} {y}");
    }
    text_at(&document, "and 3 more, which are not drawn");
    assert_eq!(all(&document, "polyline").count(), SERIES_MAX);
}

#[test]
fn what_has_no_place_is_left_out() {
    let points = [
        (0.0, 0.5),
        (f64::INFINITY, 0.5),
        (1.0, f64::NAN),
        (5.0, -1.0),
    ];
    for series in [vec![], vec![Series::line("all", points)]] {
        let svg = chart(series).svg();
        let document = Document::parse(&svg).unwrap();
        text_at(&document, "no values");
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    }
}

#[test]
fn colours_can_be_read_on_white_and_on_the_dark_background() {
    let luminance = |hex: &str| {
        let part = |at: usize| {
            let value = f64::from(u8::from_str_radix(&hex[at..at + 2], 16).unwrap()) / 255.0;
            match value <= 0.03928 {
                true => value / 12.92,
                false => ((value + 0.055) / 1.055).powf(2.4),
            }
        };
        0.2126 * part(1) + 0.7152 * part(3) + 0.0722 * part(5)
    };
    for colour in COLOURS {
        for background in ["#ffffff", "#16191d"] {
            let mut both = [luminance(colour), luminance(background)];
            both.sort_by(f64::total_cmp);
            let contrast = (both[1] + 0.05) / (both[0] + 0.05);
            assert!(contrast >= 3.0, "{colour} on {background}: {contrast}");
        }
    }
}
