//! `linerate sim oktopk`: the exchanges of a sparse allreduce, one after another (Li and Hoefler,
//! PPoPP 2022, section 3; `linerate experiment oktopk` runs the whole algorithm).

use super::document::{Document, Row};
use super::{Level, SimArgs};
use linerate::Collective;
use linerate::sim::{Fabric, FabricCall};

/// Bytes of an index and its value.
const ENTRY_BYTES: f64 = 8.0;
/// Bytes of a number that a rank tells all others.
const NUMBER_BYTES: u64 = 4;

/// Runs the exchanges of a vector of `-e` bytes, of which every rank keeps equally many elements,
/// spread evenly over the regions of all ranks: no exchange is longer on average.
pub fn run(args: &SimArgs, fabric: &Fabric, mut document: Document) -> Result<Document, String> {
    if !(args.density > 0.0 && args.density <= 1.0) {
        return Err(format!(
            "--density is {}: more than 0, at most 1",
            args.density
        ));
    }
    if args.level == Level::Engine || args.algo.is_some() || args.min_bytes.is_some() {
        return Err(
            "oktopk takes -e and --density, and none of --level engine, --algo and -b".into(),
        );
    }
    let kept = (args.max_bytes as f64 / 4.0 * args.density).ceil();
    let entries = (kept * ENTRY_BYTES) as u64;
    let numbers = NUMBER_BYTES * u64::from(args.ranks);
    let calls = [
        // Each region's entries go to the rank that adds them.
        (Collective::AllToAll, entries),
        // How many entries each region has left.
        (Collective::AllGather, numbers),
        // The largest of all go to everybody.
        (Collective::AllGather, entries),
    ];
    for (collective, bytes) in calls {
        let call = FabricCall {
            chunk_bytes: args.chunk(),
            ..FabricCall::new(collective, args.ranks, bytes)
        };
        let times = fabric.run(&call).map_err(|error| error.to_string())?;
        document.results.push(Row::new(&call, &times, times.ns));
    }
    document.total_us = Some(document.results.iter().map(|row| row.time_us).sum());
    Ok(document)
}
