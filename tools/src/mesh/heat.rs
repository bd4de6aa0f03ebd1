//! The heat map of a mesh: two panels, latency and bandwidth, as one SVG document. Bright is worse
//! in both; colours follow a logarithm. Text takes its colour from the reader's theme, except on
//! cells, whose colour is their own.

use super::matrix::Mesh;
use linerate::Rank;
use std::fmt::Write;

/// Side of a cell, px, and of one without a number.
const CELL: f64 = 44.0;
const CELL_SMALL: f64 = 14.0;
/// Most ranks whose cells have numbers.
const NUMBERED_RANKS_MAX: u32 = 20;
const MARGIN_LEFT: f64 = 64.0;
const MARGIN_TOP: f64 = 96.0;
const GAP: f64 = 90.0;
const LEGEND_WIDTH: f64 = 14.0;
const LEGEND_STEPS: u32 = 32;
/// Narrower drawings cut the title off.
const WIDTH_MIN: f64 = 640.0;
/// Width of a character of a panel's title at most, px.
const TITLE_CHARACTER: f64 = 8.0;

/// Viridis (S. van der Walt, N. Smith, 2015): even steps of lightness, also for the colour-blind
/// and in print.
const COLOURS: [[f64; 3]; 5] = [
    [68.0, 1.0, 84.0],
    [59.0, 82.0, 139.0],
    [33.0, 145.0, 140.0],
    [94.0, 201.0, 98.0],
    [253.0, 231.0, 37.0],
];

const STYLE: &str = "<style>\n\
    svg { background: #ffffff; color: #1a1a1a; font-family: sans-serif; }\n\
    text { fill: currentColor; font-size: 12px; }\n\
    .title { font-size: 16px; font-weight: bold; }\n\
    .panel { font-size: 14px; }\n\
    .self { fill: #8888; }\n\
    .ondark { fill: #ffffff; font-size: 11px; }\n\
    .onlight { fill: #000000; font-size: 11px; }\n\
    @media (prefers-color-scheme: dark) { svg { background: #14171a; color: #e8e8e8; } }\n\
    </style>\n";

/// One matrix.
struct Panel<'a> {
    title: &'a str,
    unit: &'a str,
    /// High values are worse.
    is_cost: bool,
    left: f64,
    cell: f64,
    of: &'a dyn Fn(Rank, Rank) -> f64,
}

/// The whole document.
pub fn draw(mesh: &Mesh, transport: &str, bytes: u64) -> String {
    let ranks = mesh.ranks();
    let cell = match ranks <= NUMBERED_RANKS_MAX {
        true => CELL,
        false => CELL_SMALL,
    };
    let side = (cell * f64::from(ranks)).max(160.0);
    let latency = "Latency of 8 B (median, half a round trip)";
    let bandwidth = format!("Bandwidth of {bytes} B messages");
    let title = TITLE_CHARACTER * latency.len().max(bandwidth.len() + 2) as f64;
    let stride = MARGIN_LEFT + (side + LEGEND_WIDTH + GAP).max(title + 40.0);
    let width = (2.0 * stride).max(WIDTH_MIN);
    let height = MARGIN_TOP + side + 56.0;
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width:.0}\" height=\"{height:.0}\" viewBox=\"0 0 {width:.0} {height:.0}\" role=\"img\">\n<title>linerate mesh</title>\n{STYLE}"
    );
    let _ = writeln!(
        text,
        "<text class=\"title\" x=\"16\" y=\"28\">linerate mesh: {ranks} ranks over {}, one pair at a time</text>",
        escape(transport)
    );
    let panels = [
        Panel {
            title: latency,
            unit: "us",
            is_cost: true,
            left: MARGIN_LEFT,
            cell,
            of: &|a, b| mesh.latency(a, b),
        },
        Panel {
            title: &bandwidth,
            unit: "GB/s",
            is_cost: false,
            left: MARGIN_LEFT + stride,
            cell,
            of: &|a, b| mesh.bandwidth(a, b),
        },
    ];
    for panel in &panels {
        panel.draw(mesh, &mut text);
    }
    text + "</svg>\n"
}

impl Panel<'_> {
    fn draw(&self, mesh: &Mesh, text: &mut String) {
        let ranks = mesh.ranks();
        let side = self.cell * f64::from(ranks);
        let values: Vec<f64> = mesh.pairs().map(|(a, b)| (self.of)(a, b)).collect();
        let least = values.iter().copied().fold(f64::MAX, f64::min);
        let most = values.iter().copied().fold(f64::MIN_POSITIVE, f64::max);
        let (left, middle) = (self.left, self.left + side / 2.0);
        let _ = writeln!(
            text,
            "<text class=\"panel\" x=\"{left:.1}\" y=\"56\">{}, {}</text>\n<text x=\"{middle:.1}\" y=\"76\" text-anchor=\"middle\">to rank</text>\n<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\" transform=\"rotate(-90 {:.1} {:.1})\">from rank</text>",
            self.title,
            self.unit,
            left - 40.0,
            MARGIN_TOP + side / 2.0,
            left - 40.0,
            MARGIN_TOP + side / 2.0
        );
        // Labels of all ranks would touch each other where cells are small.
        let step = if self.cell < 20.0 { 4 } else { 1 };
        for rank in (0..ranks).step_by(step) {
            let along = self.cell * (f64::from(rank) + 0.5);
            let _ = writeln!(
                text,
                "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{rank}</text><text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{rank}</text>",
                left + along,
                MARGIN_TOP - 6.0,
                left - 6.0,
                MARGIN_TOP + along + 4.0
            );
        }
        for a in 0..ranks {
            for b in 0..ranks {
                self.draw_cell(text, (a, b), (least, most));
            }
        }
        self.draw_legend(text, left + side + 16.0, (least, most));
    }

    fn draw_cell(&self, text: &mut String, (a, b): (Rank, Rank), bounds: (f64, f64)) {
        let (x, y) = (
            self.left + self.cell * f64::from(b),
            MARGIN_TOP + self.cell * f64::from(a),
        );
        let size = self.cell - 1.0;
        if a == b {
            let _ = writeln!(
                text,
                "<rect class=\"self\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{size:.1}\" height=\"{size:.1}\"/>"
            );
            return;
        }
        let value = (self.of)(a, b);
        let colour = colour(self.badness(value, bounds));
        let _ = writeln!(
            text,
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{size:.1}\" height=\"{size:.1}\" fill=\"{}\"><title>rank {a} to {b}: {} {}</title></rect>",
            hex(colour),
            short(value),
            self.unit
        );
        if self.cell >= CELL {
            let class = if is_dark(colour) { "ondark" } else { "onlight" };
            let _ = writeln!(
                text,
                "<text class=\"{class}\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
                x + self.cell / 2.0,
                y + self.cell / 2.0 + 4.0,
                short(value)
            );
        }
    }

    fn draw_legend(&self, text: &mut String, x: f64, (least, most): (f64, f64)) {
        let height = 120.0 / f64::from(LEGEND_STEPS);
        for step in 0..LEGEND_STEPS {
            let badness = f64::from(step) / f64::from(LEGEND_STEPS - 1);
            let _ = writeln!(
                text,
                "<rect x=\"{x:.1}\" y=\"{:.1}\" width=\"{LEGEND_WIDTH}\" height=\"{:.1}\" fill=\"{}\"/>",
                MARGIN_TOP + height * f64::from(step),
                height + 0.5,
                hex(colour(badness))
            );
        }
        let (best, worst) = match self.is_cost {
            true => (least, most),
            false => (most, least),
        };
        for (value, y) in [(best, MARGIN_TOP + 10.0), (worst, MARGIN_TOP + 120.0)] {
            let _ = writeln!(
                text,
                "<text x=\"{:.1}\" y=\"{y:.1}\">{} {}</text>",
                x + LEGEND_WIDTH + 6.0,
                short(value),
                self.unit
            );
        }
    }

    /// 0 for the best value, 1 for the worst.
    fn badness(&self, value: f64, (least, most): (f64, f64)) -> f64 {
        let log = |v: f64| v.max(f64::MIN_POSITIVE).ln();
        let range = log(most) - log(least);
        let share = match range > 0.0 {
            true => (log(value) - log(least)) / range,
            // All alike: none is bad.
            false => return 0.0,
        };
        if self.is_cost { share } else { 1.0 - share }
    }
}

fn colour(badness: f64) -> [f64; 3] {
    let place = badness.clamp(0.0, 1.0) * (COLOURS.len() - 1) as f64;
    let index = (place as usize).min(COLOURS.len() - 2);
    let share = place - index as f64;
    std::array::from_fn(|i| COLOURS[index][i] * (1.0 - share) + COLOURS[index + 1][i] * share)
}

fn hex(colour: [f64; 3]) -> String {
    let [r, g, b] = colour.map(|c| c.round() as u8);
    format!("#{r:02x}{g:02x}{b:02x}")
}

/// Whether white text is read better on it than black (relative luminance, ITU-R BT.709, without
/// gamma).
fn is_dark([r, g, b]: [f64; 3]) -> bool {
    0.2126 * r + 0.7152 * g + 0.0722 * b < 128.0
}

/// Three digits are enough.
fn short(value: f64) -> String {
    match value {
        v if v >= 100.0 => format!("{v:.0}"),
        v if v >= 10.0 => format!("{v:.1}"),
        v => format!("{v:.2}"),
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}

#[cfg(test)]
mod tests {
    use super::super::matrix::tests::even;
    use super::*;

    #[test]
    fn a_drawing_has_titles_axes_units_and_both_themes() {
        let mut mesh = even(3);
        mesh.set(0, 2, (25.0, 30.0), 2.5);
        let text = draw(&mesh, "shm", 1 << 20);
        for expected in [
            "linerate mesh: 3 ranks over shm",
            "Latency of 8 B (median, half a round trip), us",
            "Bandwidth of 1048576 B messages, GB/s",
            ">to rank<",
            ">from rank<",
            "prefers-color-scheme: dark",
            "rank 0 to 2: 25.0 us",
            "rank 0 to 2: 2.50 GB/s",
        ] {
            assert!(text.contains(expected), "{expected}\n{text}");
        }
        // The slow pair is the brightest cell of both panels, and both legends end there.
        assert_eq!(text.matches("#fde725").count(), 4, "{text}");
        assert_eq!(text.matches("class=\"self\"").count(), 6);
        assert_eq!(text.matches("<svg").count(), text.matches("</svg>").count());
        assert_eq!(
            text.matches("<text").count(),
            text.matches("</text>").count()
        );
    }

    #[test]
    fn many_ranks_have_small_cells_without_numbers() {
        let text = draw(&even(40), "shm", 8);
        assert!(!text.contains("ondark\" x") && text.contains("rank 39 to 38"));
    }

    #[test]
    fn colours_run_from_dark_to_bright() {
        assert_eq!(hex(colour(0.0)), "#440154");
        assert_eq!(hex(colour(1.0)), "#fde725");
        assert_eq!(hex(colour(0.5)), "#21918c");
        assert!(is_dark(colour(0.0)) && !is_dark(colour(1.0)));
    }
}
