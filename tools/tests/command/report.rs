//! `linerate report` and `whatif --svg` through the command line: pages of documents that commands
//! have really written, and files that are none.

use super::start::{linerate, parts, run, scratch};
use serde_json::Value;
use std::fs::{self, File};
use std::path::Path;

const GUIDE: &str = include_str!("../../../src/guide/network.md");
const PROFILER: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../tests/data/profiler/cpu.json"
);

/// What a command that must succeed prints.
fn good(line: &str) -> String {
    let (code, stdout, stderr) = run(line);
    assert_eq!(code, Some(0), "{line}\n{stderr}");
    stdout
}

/// The page of these files: it is well-formed and needs nothing outside of itself.
fn page(files: &str) -> String {
    let page = good(&format!("report {files} --output -"));
    let options = roxmltree::ParsingOptions {
        allow_dtd: true,
        ..Default::default()
    };
    let parsed = roxmltree::Document::parse_with_options(&page, options).unwrap();
    let is_of_page = |name: &str| {
        let names = [
            "script", "link", "img", "iframe", "object", "embed", "image", "use",
        ];
        !names.contains(&name)
    };
    for node in parsed.descendants().filter(|node| node.is_element()) {
        assert!(is_of_page(node.tag_name().name()), "{node:?}");
        for attribute in node.attributes() {
            let is_own = !attribute.value().contains("//") && !attribute.value().contains("url(");
            assert!(is_own, "{node:?} {attribute:?}");
            if attribute.name() == "href" {
                assert!(attribute.value().starts_with('#'), "{node:?}");
            }
        }
    }
    let outside = page.replace("xmlns=\"http://www.w3.org/2000/svg\"", "");
    for address in ["http://", "https://", "//", "@import", "url("] {
        assert!(!outside.contains(address), "{address}");
    }
    page
}

#[test]
fn a_trace_of_the_profiler_becomes_a_page_in_two_commands() {
    let folder = scratch("report-whatif");
    let (json, html) = (folder.join("x.json"), folder.join("report.html"));
    good(&format!(
        "whatif --trace {PROFILER} --workers 8,64 --bandwidth 1,10 --json {}",
        json.display()
    ));
    let mut command = linerate("report x.json");
    let (code, stdout, stderr) = parts(command.current_dir(&folder).output().unwrap());
    assert_eq!((code, &*stdout, &*stderr), (Some(0), "report.html\n", ""));
    let written = fs::read_to_string(&html).unwrap();
    assert_eq!(written.matches("<!DOCTYPE html>").count(), 1);

    let document: Value = serde_json::from_str(&fs::read_to_string(&json).unwrap()).unwrap();
    assert_eq!(document["command"], "whatif");
    let line = document["command_line"].as_str().unwrap();
    assert!(line.starts_with("linerate whatif --trace "), "{line}");
    let page = page(&json.display().to_string());
    for part in [
        line,
        document["advice"][0].as_str().unwrap(),
        document["version"].as_str().unwrap(),
        "<svg",
        "bandwidth, Gbit/s",
        ">64 GPUs</text>",
    ] {
        assert!(page.contains(part), "{part}: {page}");
    }
    let mut factors = 0;
    for row in document["results"].as_array().unwrap() {
        let factor = row["scaling_factor"].as_f64().unwrap();
        assert!((0.1..1.0).contains(&factor), "{row}");
        let shown = format!("{factor:.6}");
        assert!(
            page.contains(shown.trim_end_matches('0')),
            "{shown}: {page}"
        );
        factors += 1;
    }
    assert_eq!(factors, 4);
}

#[test]
fn one_page_has_the_documents_of_all_commands() {
    let folder = scratch("report-all");
    let lines = [
        "bench allreduce --ranks 2 -b 8 -e 4K -f 8 -n 5 -w 1 --no-rotate --timeout 20",
        "perf read_lat --local -a -n 10 --timeout 20",
        "mesh --ranks 2 -n 5 -s 4K --timeout 20",
        "replay --scale 0.02 --steps 2 --ranks 1",
        "replay --plan-only --mode paper",
        "experiment skew --sim",
        "bench push-pull --ranks 2 -b 1K -e 2K -n 2 -w 1 --timeout 20",
        "bench sparse-allreduce --ranks 2 --timeout 20",
        "whatif --bandwidth inf --workers 1",
    ];
    let mut files = String::new();
    for (at, line) in lines.iter().enumerate() {
        let file = folder.join(format!("{at}.json"));
        good(&format!("{line} --json {}", file.display()));
        files += &format!(" {}", file.display());
    }
    let page = page(&files);
    assert_eq!(
        page,
        good(&format!("report {files} -o -")),
        "the page is the same every time"
    );
    for line in lines {
        assert!(page.contains(&format!("linerate {line} --json ")), "{line}");
    }
    for part in [
        ">bench: allreduce</h2>",
        "Bus bandwidth: allreduce, f32, sum",
        "Latency: read_lat",
        ">latency_us</h3>",
        "Time of each step",
        ">experiment: skew</h2>",
        ">bench: push-pull</h2>",
        ">bench: sparse-allreduce</h2>",
    ] {
        assert!(page.contains(part), "{part}");
    }
    let bench: Value =
        serde_json::from_str(&fs::read_to_string(folder.join("0.json")).unwrap()).unwrap();
    let results = bench["results"].as_array().unwrap();
    assert_eq!(results.len(), 8);
    for row in results {
        let bytes = format!("<td class=\"n\">{}</td>", row["bytes"]);
        assert!(page.contains(&bytes), "{bytes}");
    }
}

#[test]
fn a_document_comes_from_standard_input() {
    let folder = scratch("report-stdin");
    let json = folder.join("x.json");
    good(&format!("whatif --json {}", json.display()));
    let mut command = linerate("report - --output -");
    let output = command.stdin(File::open(&json).unwrap()).output();
    let (code, stdout, stderr) = parts(output.unwrap());
    assert_eq!((code, &*stderr), (Some(0), ""));
    assert!(stdout.contains(">whatif: resnet50</h2>"), "{stdout}");
}

/// The exit code 2 and the text of a report of a file.
fn refused(file: &Path) -> String {
    let line = format!("report {} --output -", file.display());
    let (code, stdout, stderr) = run(&line);
    assert_eq!((code, &*stdout), (Some(2), ""), "{line}: {stderr}");
    let file = file.display().to_string();
    assert!(
        stderr.contains(&file) && stderr.contains("expected"),
        "{line}: {stderr}"
    );
    stderr
}

#[test]
fn what_is_no_document_is_refused_by_name() {
    let folder = scratch("report-refused");
    let file = folder.join("x.json");
    assert!(refused(&folder.join("none.json")).contains("cannot be read: No such file"));
    assert!(refused(&folder).contains("cannot be read: Is a directory"));
    assert!(refused(Path::new(PROFILER)).contains("no text 'command'"));
    good(&format!("whatif --json {}", file.display()));
    let text = fs::read_to_string(&file).unwrap();
    let mut document: Value = serde_json::from_str(&text).unwrap();
    for (name, value, part) in [
        ("results", serde_json::json!([]), "has nothing in results"),
        (
            "results",
            serde_json::json!([{"n": 1}]),
            "results[0]: missing field",
        ),
        (
            "version",
            "0.0.1".into(),
            "was written by version 0.0.1, expected ",
        ),
        (
            "command",
            "doctor".into(),
            "a document of 'doctor' is not understood",
        ),
        (
            "command",
            "bench".into(),
            "results[0]: missing field `collective`; expected a document as linerate bench",
        ),
    ] {
        let good = document[name].clone();
        document[name] = value;
        fs::write(&file, document.to_string()).unwrap();
        let stderr = refused(&file);
        assert!(stderr.contains(part), "{part}: {stderr}");
        document[name] = good;
    }
    for (bytes, part) in [
        (&b""[..], "is not JSON: EOF"),
        (&text.as_bytes()[..text.len() / 2], "is not JSON"),
        (b"\xff\xfe", "is not JSON"),
        (b"[1]", "no object"),
    ] {
        fs::write(&file, bytes).unwrap();
        let stderr = refused(&file);
        assert!(stderr.contains(part), "{part}: {stderr}");
    }
    let long = File::create(&file).unwrap();
    long.set_len((100 << 20) + 1).unwrap();
    assert!(refused(&file).contains("has more than 104857600 bytes"));
}

#[test]
fn a_page_replaces_no_document_and_needs_a_place() {
    let folder = scratch("report-places");
    let file = folder.join("x.json");
    let shown = file.display();
    good(&format!("whatif --json {shown}"));
    let before = fs::read(&file).unwrap();
    for (line, part) in [
        (
            format!("report {shown} -o {shown}"),
            "would replace a document",
        ),
        (
            format!("report {shown} -o /nonexistent/x.html"),
            "cannot be written",
        ),
        (
            "whatif --svg /nonexistent/x.svg".into(),
            "--svg '/nonexistent/x.svg' cannot be written",
        ),
        (
            "whatif --svg - --json -".into(),
            "--json and --svg cannot both be -",
        ),
        ("report".into(), "<FILE>"),
    ] {
        let (code, stdout, stderr) = run(&line);
        assert_eq!((code, &*stdout), (Some(2), ""), "{line}: {stderr}");
        assert!(stderr.contains(part), "{line}: {stderr}");
    }
    assert_eq!(fs::read(&file).unwrap(), before);
}

#[test]
fn hostile_text_of_a_document_stays_text() {
    let folder = scratch("report-hostile");
    let file = folder.join("x.json");
    good(&format!(
        "whatif --bandwidth 1,10 --json {}",
        file.display()
    ));
    let mut document: Value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    document["model"] = "<script>alert(1)</script>\u{0}".into();
    document["results"][0]["algorithm"] = "</svg><img src=x>".into();
    document["notes"] = serde_json::json!(["<style>"]);
    fs::write(&file, document.to_string()).unwrap();
    let page = page(&file.display().to_string());
    assert!(page.contains("&lt;script&gt;alert(1)"), "{page}");
}

#[test]
fn the_plot_of_the_guide_is_what_the_command_draws() {
    let (_, rest) = GUIDE.split_once("<div>\n").unwrap();
    // What validations of this host have found is not in the guide.
    let cache = scratch("whatif-guide");
    let good = |line: &str| {
        let mut command = linerate(line);
        let (code, stdout, stderr) = parts(command.env("XDG_CACHE_HOME", &cache).output().unwrap());
        assert_eq!(code, Some(0), "{stderr}");
        stdout
    };
    let (plot, _) = rest.split_once("\n</div>").unwrap();
    assert!(
        plot.len() < 8000 && !plot.contains("\n\n"),
        "{}",
        plot.len()
    );
    let line = "whatif --trace resnet50 --bandwidth 1,2,5,10,25,40,100 --compression 1,4,10";
    assert!(GUIDE.contains(&format!("`linerate {line} --svg FILE`")));
    assert_eq!(good(&format!("{line} --svg -")), format!("{plot}\n"));
    // Beside a file, the table is printed.
    let file = scratch("whatif-svg").join("x.svg");
    let text = good(&format!("{line} --svg {}", file.display()));
    assert!(text.starts_with("# linerate whatif: resnet50"), "{text}");
    assert_eq!(fs::read_to_string(file).unwrap(), format!("{plot}\n"));
}
