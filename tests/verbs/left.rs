//! What is left behind: nothing.

use super::pair::{Pair, check, fill, has_device};
use linerate::options::VerbsSettings;
use linerate::transport::Region;
use std::process::Command;
use std::sync::Arc;

/// Objects of the device that the kernel knows, as `rdma resource show` counts them; `None` without
/// that tool.
fn objects() -> Option<String> {
    let output = Command::new("rdma").args(["resource", "show"]).output();
    let output = output.ok().filter(|output| output.status.success())?;
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// `LINERATE_TEST_CONNECTS` of them; the full number takes minutes in an emulated machine.
#[test]
fn connecting_and_closing_a_thousand_times_leaves_no_object() {
    if !has_device("1000 connects and closes") {
        return;
    }
    let asked = std::env::var("LINERATE_TEST_CONNECTS").ok();
    let count = asked.and_then(|text| text.parse().ok()).unwrap_or(1000);
    let settings = VerbsSettings {
        slots: Some(8),
        ..VerbsSettings::default()
    };
    let before = objects();
    for number in 0..count {
        let mut pair = Pair::new([&settings, &settings]);
        if number % 100 == 0 {
            pair.greet(number);
        }
    }
    match before {
        Some(before) => assert_eq!(objects(), Some(before)),
        None => println!("skipped: counting the kernel's objects: no rdma tool (iproute2)"),
    }
}

#[test]
fn ten_thousand_regions_are_registered_and_used() {
    if !has_device("10,000 registrations") {
        return;
    }
    let before = objects();
    let mut pair = Pair::plain();
    let regions: Vec<_> = (0..10_000)
        .map(|_| {
            let region = Arc::new(Region::private(4096).unwrap());
            let key = pair.ranks[0].transport.register(region.clone()).unwrap();
            (region, key)
        })
        .collect();
    let place = pair.memory(1, 4096);
    for (number, (region, key)) in (0u64..).zip(&regions).step_by(997) {
        let view = region.view().in_region(*key, 0);
        fill(view, number);
        pair.receive(1, 5, place.view, 1);
        pair.send(0, 5, view, 2);
        pair.done(0, 2);
        pair.done(1, 1);
        check(place.view, number);
    }
    for (_, key) in &regions {
        pair.ranks[0].transport.deregister(*key).unwrap();
    }
    drop(pair);
    assert_eq!(objects(), before);
}
