//! Completions and their descriptor. The tests are not in the file itself, because the models
//! compile it too.

use super::Completions;
use crate::error::Error;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::sync::Arc;

fn is_readable(completions: &Completions) -> bool {
    let descriptor = completions.descriptor().unwrap();
    let mut set = [PollFd::new(&*descriptor, PollFlags::IN)];
    poll(&mut set, Some(&Timespec::default())).unwrap() == 1
}

fn take(completions: &Completions, max: usize) -> Vec<u64> {
    let mut into = Vec::new();
    assert_eq!(completions.take(&mut into, max), into.len());
    into.iter().map(|completion| completion.user).collect()
}

#[test]
fn completions_come_in_the_order_of_the_ends_and_the_descriptor_follows() {
    let completions = Arc::new(Completions::default());
    let [first, second, third] = [7, 8, 9].map(|user| completions.place(user));
    assert_eq!(completions.running_count(), 3);
    second.end(Ok(()), None);
    assert!(completions.has_any() && is_readable(&completions));
    first.end(Err(Error::invalid("a reason")), None);
    assert_eq!(take(&completions, 1), [8]);
    assert!(is_readable(&completions));
    assert_eq!(take(&completions, 9), [7]);
    assert!(!completions.has_any() && !is_readable(&completions));
    third.end(Ok(()), None);
    assert!(is_readable(&completions));
    assert!(take(&completions, 0).is_empty());
    assert_eq!(take(&completions, 9), [9]);
    assert_eq!(completions.running_count(), 0);
    assert!(!is_readable(&completions));
}

#[test]
fn a_place_that_is_dropped_is_a_completion_with_an_error() {
    let completions = Arc::new(Completions::default());
    drop(completions.place(5));
    let mut into = Vec::new();
    completions.take(&mut into, 9);
    assert_eq!(into[0].user, 5);
    let text = into[0].result.clone().unwrap_err().to_string();
    assert!(text.contains("dropped before its operation"), "{text}");
}
