//! Exchanges of the tests: a map that threads share, and what goes wrong with one.

use linerate::options::Exchange;
use std::cell::Cell;
use std::collections::HashMap;
use std::sync::{Condvar, Mutex};
use std::time::Duration;

pub type Fallible<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// A map that the threads of this process share.
#[derive(Default)]
pub struct Map {
    values: Mutex<HashMap<String, Vec<u8>>>,
    changed: Condvar,
    /// Every value that was put.
    put: Mutex<Vec<(String, String)>>,
}

impl Map {
    /// What is in it now, as text.
    pub fn values(&self) -> Vec<(String, String)> {
        let values = self.values.lock().unwrap();
        let text = |value: &Vec<u8>| String::from_utf8_lossy(value).into_owned();
        values.iter().map(|(k, v)| (k.clone(), text(v))).collect()
    }

    /// All that was ever put into it, as text.
    pub fn put_values(&self) -> Vec<(String, String)> {
        self.put.lock().unwrap().clone()
    }
}

impl Exchange for Map {
    fn put(&self, key: &str, value: &[u8], _: Duration) -> Fallible<()> {
        assert!(key.starts_with("linerate/") && key.len() <= 250, "{key}");
        let text = String::from_utf8(value.to_vec()).expect("values are text");
        self.put.lock().unwrap().push((key.into(), text));
        let mut values = self.values.lock().unwrap();
        values.insert(key.into(), value.into());
        self.changed.notify_all();
        Ok(())
    }

    fn get(&self, key: &str, limit: Duration) -> Fallible<Option<Vec<u8>>> {
        let values = self.values.lock().unwrap();
        let is_missing = |values: &mut HashMap<_, _>| !values.contains_key(key);
        let waited = self.changed.wait_timeout_while(values, limit, is_missing);
        Ok(waited.unwrap().0.get(key).cloned())
    }
}

/// One rank's view of a map, which counts what the rank does.
pub struct Counted<'a> {
    map: &'a Map,
    pub puts: Cell<u32>,
    pub gets: Cell<u32>,
}

impl Counted<'_> {
    pub fn new(map: &Map) -> Counted<'_> {
        Counted {
            map,
            puts: Cell::new(0),
            gets: Cell::new(0),
        }
    }
}

impl Exchange for Counted<'_> {
    fn put(&self, key: &str, value: &[u8], limit: Duration) -> Fallible<()> {
        self.puts.set(self.puts.get() + 1);
        self.map.put(key, value, limit)
    }

    fn get(&self, key: &str, limit: Duration) -> Fallible<Option<Vec<u8>>> {
        self.gets.set(self.gets.get() + 1);
        self.map.get(key, limit)
    }
}

/// What a faulty exchange says.
pub const GONE: &str = "the store has gone away";

/// What an exchange does instead of what it should.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fault {
    None,
    /// Every put of a key with this end is an error.
    NoPut(&'static str),
    /// Every get of a key with this end is an error.
    NoGet(&'static str),
    /// Everything is an error.
    Dead,
    /// A put or get of a key with this end takes longer than two seconds, whatever its limit is.
    Late(&'static str),
    /// A get of a key with this end gives this.
    Lie(&'static str, &'static str),
    /// A get of a key with this end panics.
    Panic(&'static str),
    /// It waits for nothing, and takes longer than it may.
    Slow,
}

/// A map with a fault.
pub struct Faulty<'a>(pub &'a Map, pub Fault);

impl Exchange for Faulty<'_> {
    fn put(&self, key: &str, value: &[u8], limit: Duration) -> Fallible<()> {
        match self.1 {
            Fault::NoPut(end) if key.ends_with(end) => Err(GONE.into()),
            Fault::Dead => Err(GONE.into()),
            Fault::Late(end) if key.ends_with(end) => {
                std::thread::sleep(Duration::from_millis(2500));
                self.0.put(key, value, limit)
            }
            Fault::Slow => {
                std::thread::sleep(Duration::from_millis(30));
                self.0.put(key, value, limit)
            }
            _ => self.0.put(key, value, limit),
        }
    }

    fn get(&self, key: &str, limit: Duration) -> Fallible<Option<Vec<u8>>> {
        match self.1 {
            Fault::NoGet(end) if key.ends_with(end) => Err(GONE.into()),
            Fault::Dead => Err(GONE.into()),
            Fault::Late(end) if key.ends_with(end) => {
                std::thread::sleep(Duration::from_millis(2500));
                self.0.get(key, limit)
            }
            Fault::Lie(end, value) if key.ends_with(end) => Ok(Some(value.into())),
            Fault::Panic(end) if key.ends_with(end) => panic!("a fault of the test's exchange"),
            Fault::Slow => {
                std::thread::sleep(Duration::from_millis(30));
                self.0.get(key, Duration::ZERO)
            }
            _ => self.0.get(key, limit),
        }
    }
}
