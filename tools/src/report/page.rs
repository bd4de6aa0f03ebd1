//! The page: everything in one file, well-formed as HTML and as XML, without scripts.

use super::read::Document;
use super::table::{Table, matrix, scalar};
use linerate_job::plot::Chart;
use maud::{DOCTYPE, Markup, PreEscaped, html};
use serde_json::{Map, Value};

/// Values of a short list that are shown.
const LISTED_MAX: usize = 100;

/// Elements that HTML does not close and XML does.
const META: &str = r#"<meta charset="utf-8"/><meta name="viewport" content="width=device-width, initial-scale=1"/>"#;

const STYLE: &str = "\
:root{color-scheme:light dark;--text:#222;--back:#fff;--soft:#f3f4f6;--line:#cfd3d8}\
@media (prefers-color-scheme:dark){:root{--text:#e6e6e6;--back:#16191d;--soft:#23282e;--line:#3d444c}}\
body{margin:0 auto;padding:1rem;max-width:64rem;background:var(--back);color:var(--text);font:1rem/1.5 sans-serif}\
h1{margin:0 0 .5rem}\
h2{margin:2.5rem 0 .5rem;border-bottom:1px solid var(--line);overflow-wrap:anywhere}\
h3{margin:1.5rem 0 .3rem}\
a{color:inherit}\
pre{background:var(--soft);padding:.6rem;overflow-x:auto;white-space:pre-wrap;overflow-wrap:anywhere}\
figure{margin:1rem 0;overflow-x:auto}\
figure svg{display:block;width:100%;min-width:28rem;max-width:52rem;height:auto}\
.advice{background:var(--soft);border-left:4px solid #0072b2;padding:.6rem .8rem;margin:.6rem 0}\
.small{font-size:.9rem;overflow-wrap:anywhere}\
.wide{overflow-x:auto}\
table{border-collapse:collapse;font-size:.9rem;font-variant-numeric:tabular-nums}\
th,td{padding:.2rem .6rem;border-bottom:1px solid var(--line);text-align:left;white-space:nowrap}\
th{background:var(--soft)}\
.n{text-align:right}\
dl{display:grid;grid-template-columns:max-content 1fr;gap:0 1rem;margin:.5rem 0;font-size:.9rem}\
dt{font-weight:bold}\
dd{margin:0;overflow-wrap:anywhere}\
@media print{:root{--text:#000;--back:#fff;--soft:#f3f4f6;--line:#999}body{max-width:none;padding:0}\
.wide,figure{overflow:visible}figure,tr,.advice{break-inside:avoid}table{font-size:.7rem}th,td{white-space:normal;padding:.1rem .3rem}}";

/// The page of these documents, each with its plots.
pub fn page(documents: &[(Document, Vec<Chart>)]) -> String {
    let markup = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                (PreEscaped(META))
                title { "linerate report" }
                style { (PreEscaped(STYLE)) }
            }
            body {
                h1 { "linerate report" }
                @if documents.len() > 1 {
                    ol {
                        @for (at, (document, _)) in documents.iter().enumerate() {
                            li { a href={ "#d" (at) } { (title(document)) } }
                        }
                    }
                }
                @for (at, (document, charts)) in documents.iter().enumerate() {
                    section id={ "d" (at) } { (section(document, charts)) }
                }
            }
        }
    };
    markup.into_string()
}

/// The command, and what it was about.
fn title(document: &Document) -> String {
    let fields = &document.fields;
    let first = fields.get("results").and_then(|results| results.get(0));
    let names = ["experiment", "model", "test"].into_iter();
    let about = names.map(|name| fields.get(name));
    let about = about.chain([first.and_then(|first| first.get("collective"))]);
    let about = about.flatten().find_map(Value::as_str);
    match about {
        Some(about) => format!("{}: {about}", document.command),
        None => document.command.clone(),
    }
}

fn section(document: &Document, charts: &[Chart]) -> Markup {
    let mut fields = document.fields.clone();
    let advice = fields.remove("advice").unwrap_or_default();
    let advice = advice.as_array().into_iter().flatten();
    html! {
        h2 { (title(document)) }
        p class="small" { "From " (document.file) ", which this command wrote:" }
        pre { code { (document.command_line) } }
        @for paragraph in advice.filter_map(Value::as_str) {
            p class="advice" { (paragraph) }
        }
        @for chart in charts { figure { (chart.markup()) } }
        (object(&fields))
    }
}

/// All fields: single values first, then lists and what has fields itself.
fn object(fields: &Map<String, Value>) -> Markup {
    let facts: Vec<(&String, String)> = fields
        .iter()
        .filter_map(|(name, value)| Some((name, fact(value)?)))
        .collect();
    html! {
        @if !facts.is_empty() {
            dl { @for (name, text) in facts { dt { (name) } dd { (text) } } }
        }
        @for (name, value) in fields {
            @match value {
                Value::Object(inner) if !inner.is_empty() => { h3 { (name) } (object(inner)) }
                Value::Array(items) if items.iter().any(Value::is_array) => { (matrix(name, items)) }
                Value::Array(items) if items.iter().any(Value::is_object) => {
                    (Table::of(items).markup(name))
                }
                Value::Array(items) if items.iter().any(Value::is_string) => {
                    h3 { (name) }
                    ul { @for item in items.iter().filter_map(scalar) { li { (item) } } }
                }
                _ => {}
            }
        }
    }
}

/// The text of a single value, or of a short list of numbers.
fn fact(value: &Value) -> Option<String> {
    let Value::Array(items) = value else {
        return scalar(value);
    };
    let is_single = |item: &Value| item.is_number() || item.is_boolean() || item.is_null();
    if items.is_empty() || !items.iter().all(is_single) {
        return None;
    }
    let shown = items.iter().take(LISTED_MAX);
    let shown: Vec<String> = shown
        .map(|item| scalar(item).unwrap_or("–".into()))
        .collect();
    let more = match items.len() > LISTED_MAX {
        true => format!(", and {} more", items.len() - LISTED_MAX),
        false => String::new(),
    };
    Some(shown.join(", ") + &more)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_names_stay_text_and_every_field_is_on_the_page() {
        let text = r#"{
            "command": "whatif", "command_line": "linerate whatif '<script>'", "version": "VERSION",
            "model": "<script>alert(1)</script>", "advice": ["a < b & c"], "notes": ["]]>", "--><!--"],
            "\"><img src=x onerror=y>": 5, "bandwidth": [[null, 1.5], [2.5, null]],
            "link": {"gbit": 10, "rates": [1, 2]},
            "results": [{"a</td>": "</table></html>"}]
        }"#;
        let text = text.replace("VERSION", env!("CARGO_PKG_VERSION"));
        let document = Document::parse("<b>.json".into(), text.as_bytes()).unwrap();
        let page = page(&[(document, Vec::new())]);
        for hostile in ["<script", "<img", "<b>.json", "<!--"] {
            assert!(!page.contains(hostile), "{hostile}");
        }
        let options = roxmltree::ParsingOptions {
            allow_dtd: true,
            ..Default::default()
        };
        let parsed = roxmltree::Document::parse_with_options(&page, options).unwrap();
        let texts: Vec<&str> = parsed
            .descendants()
            .filter_map(|node| node.text())
            .collect();
        for text in [
            "linerate whatif '<script>'",
            "whatif: <script>alert(1)</script>",
            "a < b & c",
            "--><!--",
            "\"><img src=x onerror=y>",
            "2.5",
            "gbit",
            "1, 2",
            "a</td>",
            "</table></html>",
        ] {
            assert!(texts.contains(&text), "{text}: {texts:?}");
        }
    }
}
