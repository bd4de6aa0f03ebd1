//! `linerate report`: one HTML page of documents that other commands wrote with `--json`.
//!
//! The page needs nothing outside of itself, and the same documents give the same page. Read first:
//! `read.rs`, which says what a document is; `page.rs` shows all of its fields without knowing
//! them, and `charts.rs` knows those that are drawn.

mod charts;
mod page;
mod read;
mod table;

use clap::Args;
use linerate_job::ending::{self, FAILED, USAGE};
use linerate_job::output;
use linerate_job::plot::Chart;
use read::{Document, ReadError};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Make one HTML page, with tables and plots, of what other commands wrote with --json
#[derive(Args, Clone, Debug)]
pub struct ReportArgs {
    /// Documents of bench, experiment, mesh, perf, replay, sim and whatif; - for standard input
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// Where the page goes, - for standard output
    #[arg(
        short = 'o',
        long,
        default_value = "report.html",
        value_name = "FILE|-"
    )]
    pub output: PathBuf,
}

/// Reads the documents and writes the page.
pub fn run(args: &ReportArgs) -> ExitCode {
    let page = match prepare(args) {
        Ok(page) => page,
        Err(reason) => return ending::fail(USAGE, &reason),
    };
    let written = output::write_document("--output", &args.output, &page);
    let told = written.and_then(|()| match output::is_stdout(&args.output) {
        true => Ok(()),
        false => output::print_text(&format!("{}\n", args.output.display())),
    });
    match told {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => ending::fail(FAILED, &reason),
    }
}

/// The page. The error says what is wrong with an argument or a file.
fn prepare(args: &ReportArgs) -> Result<String, String> {
    output::check_target("--output", &args.output)?;
    let output = std::fs::canonicalize(&args.output).ok();
    let is_output = |file: &PathBuf| output.is_some() && std::fs::canonicalize(file).ok() == output;
    if let Some(file) = args.files.iter().find(|file| is_output(file)) {
        let file = file.display();
        return Err(format!(
            "--output '{file}' would replace a document that is read: give another name"
        ));
    }
    let documents = args.files.iter().map(|file| read(file));
    let documents: Result<Vec<_>, ReadError> = documents.collect();
    let documents = documents.map_err(|error| error.to_string())?;
    Ok(page::page(&documents))
}

/// A document and its plots.
fn read(path: &Path) -> Result<(Document, Vec<Chart>), ReadError> {
    let document = Document::read(path)?;
    match charts::build(&document) {
        Ok(charts) => Ok((document, charts)),
        Err(cause) => Err(ReadError::Malformed {
            file: document.file,
            command: document.command,
            cause,
        }),
    }
}
