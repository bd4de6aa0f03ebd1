//! [`Table`]: rows of a document, with a column for each number and text in them.

use maud::{Markup, html};
use serde_json::Value;
use std::collections::BTreeMap;

/// Rows and columns that are shown.
const ROWS_MAX: usize = 1000;
const COLUMNS_MAX: usize = 100;

/// What a row is about comes first, in this order; then other texts, then numbers.
const FIRST: [&str; 24] = [
    "policy",
    "collective",
    "model",
    "n",
    "servers",
    "ranks",
    "bandwidth_gbps",
    "latency_us",
    "compression",
    "algorithm",
    "bytes",
    "count",
    "dtype",
    "op",
    "root",
    "memory",
    "in_place",
    "scaling_factor",
    "low",
    "high",
    "limited_by",
    "time_us.p50",
    "algbw",
    "busbw",
];

/// A text, and whether it is a number.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Cell {
    text: String,
    is_number: bool,
}

/// Cells of the rows, by name of the column.
pub struct Table {
    /// With whether all of a column are numbers.
    columns: Vec<(String, bool)>,
    rows: Vec<BTreeMap<String, Cell>>,
    /// What all rows have in common, which is no column: everything if there is one row.
    common: Vec<(String, String)>,
    /// Rows and columns that are not shown.
    left_out: (usize, usize),
}

impl Table {
    /// Of objects. Objects inside of a row give columns of their own, lists of values their length,
    /// lists of objects nothing.
    pub fn of(items: &[Value]) -> Table {
        let rows = items.iter().take(ROWS_MAX).map(|item| {
            let mut cells = BTreeMap::new();
            flatten("", item, &mut cells);
            cells
        });
        let rows: Vec<BTreeMap<String, Cell>> = rows.collect();
        // Whether a text is in a column, and how many cells it has.
        let mut seen: BTreeMap<&str, (bool, usize)> = BTreeMap::new();
        for (name, cell) in rows.iter().flatten() {
            let (is_text, count) = seen.entry(name).or_default();
            *is_text |= !cell.is_number;
            *count += 1;
        }
        let rank = |name: &str| {
            let first = FIRST.iter().position(|first| *first == name);
            first.unwrap_or(FIRST.len() + usize::from(!seen[name].0))
        };
        let mut names: Vec<&str> = seen.keys().copied().collect();
        names.sort_by_cached_key(|name| (rank(name), *name));
        let is_common = |name: &&str| {
            let mut cells = rows.iter().map(|row| &row[*name]);
            let first = rows[0].get(*name);
            seen[name].1 == rows.len() && cells.all(|cell| Some(cell) == first)
        };
        let (common, names): (Vec<&str>, Vec<&str>) = names.into_iter().partition(is_common);
        let excess = |names: &[&str]| names.len().saturating_sub(COLUMNS_MAX);
        let shown = |name: &&str| (name.to_string(), rows[0][*name].text.clone());
        Table {
            left_out: (items.len() - rows.len(), excess(&common) + excess(&names)),
            common: common.iter().take(COLUMNS_MAX).map(shown).collect(),
            columns: names
                .iter()
                .take(COLUMNS_MAX)
                .map(|name| (name.to_string(), !seen[name].0))
                .collect(),
            rows,
        }
    }

    /// The table with this name, which scrolls where it is too wide.
    pub fn markup(&self, name: &str) -> Markup {
        let (rows, columns) = self.left_out;
        html! {
            h3 { (name) }
            @if self.rows.len() == 1 {
                dl { @for (name, text) in &self.common { dt { (name) } dd { (text) } } }
            } @else if !self.common.is_empty() {
                p class="small" {
                    "In every row: "
                    @for (at, (name, text)) in self.common.iter().enumerate() {
                        @if at > 0 { ", " }
                        (name) " " b { (text) }
                    }
                }
            }
            @if !self.columns.is_empty() {
                div class="wide" tabindex="0" {
                    table {
                        thead { tr {
                            @for (name, is_number) in &self.columns {
                                th scope="col" class=[is_number.then_some("n")] { (name) }
                            }
                        } }
                        tbody {
                            @for row in &self.rows {
                                tr { @for (name, _) in &self.columns { (shown(row.get(name))) } }
                            }
                        }
                    }
                }
            }
            @if rows + columns > 0 {
                p class="small" { "Not shown: " (rows) " rows, " (columns) " columns." }
            }
        }
    }
}

/// Lists of equal length as a table without names, such as a matrix over ranks.
pub fn matrix(name: &str, items: &[Value]) -> Markup {
    let rows = items.iter().take(ROWS_MAX);
    let rows: Vec<&[Value]> = rows
        .map(|row| {
            row.as_array()
                .map_or(&[][..], |row| &row[..row.len().min(COLUMNS_MAX)])
        })
        .collect();
    let columns = rows.iter().map(|row| row.len()).max().unwrap_or(0);
    let longest = items.iter().filter_map(Value::as_array).map(Vec::len).max();
    let left_out = (items.len() - rows.len(), longest.unwrap_or(0) - columns);
    html! {
        h3 { (name) }
        div class="wide" tabindex="0" {
            table {
                thead { tr { td {} @for column in 0..columns { th scope="col" class="n" { (column) } } } }
                tbody {
                    @for (at, row) in rows.iter().enumerate() {
                        tr { th scope="row" { (at) } @for cell in *row { (shown(cell_of(cell).as_ref())) } }
                    }
                }
            }
        }
        @if left_out != (0, 0) {
            p class="small" { "Not shown: " (left_out.0) " rows, " (left_out.1) " columns." }
        }
    }
}

fn shown(cell: Option<&Cell>) -> Markup {
    html! {
        @match cell {
            Some(cell) if cell.is_number => { td class="n" { (cell.text) } }
            Some(cell) => { td { (cell.text) } }
            None => { td class="n" { "–" } }
        }
    }
}

fn flatten(name: &str, value: &Value, cells: &mut BTreeMap<String, Cell>) {
    match value {
        Value::Object(fields) => {
            for (inner, value) in fields {
                let name = match name.is_empty() {
                    true => inner.clone(),
                    false => format!("{name}.{inner}"),
                };
                flatten(&name, value, cells);
            }
        }
        Value::Array(items) if items.iter().any(|item| item.is_object() || item.is_array()) => {}
        Value::Array(items) => {
            let count = Cell {
                text: items.len().to_string(),
                is_number: true,
            };
            cells.insert(format!("{name} (count)"), count);
        }
        _ => {
            let name = if name.is_empty() { "value" } else { name };
            cells.extend(cell_of(value).map(|cell| (name.to_string(), cell)));
        }
    }
}

/// `None` for what is no single value.
fn cell_of(value: &Value) -> Option<Cell> {
    Some(Cell {
        text: scalar(value)?,
        is_number: value.is_number(),
    })
}

/// The text of a single value; `None` for `null`, lists and objects.
pub fn scalar(value: &Value) -> Option<String> {
    match value {
        Value::Bool(true) => Some("yes".into()),
        Value::Bool(false) => Some("no".into()),
        Value::String(text) => Some(text.clone()),
        Value::Number(number) if number.is_f64() => number.as_f64().map(six_digits),
        Value::Number(number) => Some(number.to_string()),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    }
}

/// Six digits at most, unless more stand before the point.
fn six_digits(value: f64) -> String {
    let size = value.abs();
    if size != 0.0 && !(1e-4..1e15).contains(&size) {
        return format!("{value:.5e}");
    }
    let before = if size < 1e-9 {
        0.0
    } else {
        size.log10().floor()
    };
    let decimals = (5.0 - before).clamp(0.0, 10.0) as usize;
    let text = format!("{value:.decimals$}");
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').into(),
        false => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn page(rows: Value) -> String {
        let markup = Table::of(rows.as_array().unwrap()).markup("rows");
        markup.into_string()
    }

    #[test]
    fn columns_begin_with_what_a_row_is_about() {
        let text = page(json!([
            {"wrong": 0, "bytes": 8, "path": "a", "time_us": {"p50": 1.5}},
            {"wrong": 1, "bytes": 16, "path": "b", "time_us": {"p50": 2.5}},
        ]));
        let head = ["bytes", "time_us.p50", "path", "wrong"];
        let places = head.map(|name| text.find(&format!(">{name}</th>")));
        assert!(places[0].is_some() && places.is_sorted(), "{text}");
        assert!(
            text.contains("<td class=\"n\">2.5</td><td>b</td>"),
            "{text}"
        );
    }

    #[test]
    fn what_all_rows_have_is_told_once() {
        let text = page(json!([{"dtype": "f32", "bytes": 1}, {"dtype": "f32", "bytes": 2}]));
        assert!(text.contains("In every row: dtype <b>f32</b>"), "{text}");
        assert_eq!(text.matches("f32").count(), 1);
    }

    #[test]
    fn one_row_is_a_list() {
        let text = page(json!([{"dtype": "f32", "bytes": 1}]));
        assert!(text.contains("<dt>bytes</dt><dd>1</dd>"), "{text}");
        assert!(!text.contains("<table"), "{text}");
    }

    #[test]
    fn odd_rows_have_a_table_too() {
        let text = page(json!([{"a": null, "b": [1, 2], "c": [{}]}, 3, {"<i>": "<b>"}]));
        for part in ["b (count)", "&lt;i&gt;", "&lt;b&gt;", "value", "–"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(!page(json!([{}, {}])).contains("<table"));
        let many: Vec<Value> = (0..ROWS_MAX + 5).map(|at| json!({ "at": at })).collect();
        assert!(page(many.into()).contains("Not shown: 5 rows, 0 columns."));
    }

    #[test]
    fn numbers_have_six_digits() {
        for (value, text) in [
            (0.5397123456, "0.539712"),
            (12.0, "12"),
            (1234567.8, "1234568"),
            (-0.25, "-0.25"),
            (1e-9, "1.00000e-9"),
            (0.0, "0"),
        ] {
            assert_eq!(six_digits(value), text);
        }
    }
}
