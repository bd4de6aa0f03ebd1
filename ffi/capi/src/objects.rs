//! What handles name, and the one table of them.

use crate::config::Settings;
use crate::status::{Fault, invalid};
use crate::table::{Pinned, SLOTS_MAX, Table, Unknown};
use linerate::{Buffer, Communicator, CompletionQueue, Error, Operation};
use std::sync::{Mutex, MutexGuard, TryLockError};

/// An object of C.
pub(crate) enum Object {
    Config(Mutex<Settings>),
    Communicator(Communicator),
    Memory(Buffer<u8>),
    Operation(Mutex<Operation>),
    Queue(CompletionQueue),
}

static OBJECTS: Table<Object> = Table::new();

/// A kind of objects: its number in handles, its name, and how an object of it is seen.
pub(crate) struct Kind<K: 'static> {
    number: u8,
    name: &'static str,
    of: fn(&Object) -> Option<&K>,
}

/// An object that is in use, so that it lives.
pub(crate) struct Used<K: 'static> {
    object: Pinned<'static, Object>,
    of: fn(&Object) -> Option<&K>,
}

const NAMES: [&str; 6] = [
    "nothing",
    "config",
    "communicator",
    "memory",
    "operation",
    "queue",
];

pub(crate) const CONFIG: Kind<Mutex<Settings>> = Kind {
    number: 1,
    name: NAMES[1],
    of: |object| match object {
        Object::Config(config) => Some(config),
        _ => None,
    },
};

pub(crate) const COMMUNICATOR: Kind<Communicator> = Kind {
    number: 2,
    name: NAMES[2],
    of: |object| match object {
        Object::Communicator(communicator) => Some(communicator),
        _ => None,
    },
};

pub(crate) const MEMORY: Kind<Buffer<u8>> = Kind {
    number: 3,
    name: NAMES[3],
    of: |object| match object {
        Object::Memory(memory) => Some(memory),
        _ => None,
    },
};

pub(crate) const OPERATION: Kind<Mutex<Operation>> = Kind {
    number: 4,
    name: NAMES[4],
    of: |object| match object {
        Object::Operation(operation) => Some(operation),
        _ => None,
    },
};

pub(crate) const QUEUE: Kind<CompletionQueue> = Kind {
    number: 5,
    name: NAMES[5],
    of: |object| match object {
        Object::Queue(queue) => Some(queue),
        _ => None,
    },
};

impl<K> Kind<K> {
    /// The object of a handle.
    #[inline]
    pub(crate) fn get(&self, handle: u64) -> Result<Used<K>, Fault> {
        match OBJECTS.get(self.number, handle) {
            Ok(object) => Ok(Used {
                object,
                of: self.of,
            }),
            Err(unknown) => Err(self.refuse(handle, unknown)),
        }
    }

    /// Ends a handle; 0 is none.
    pub(crate) fn free(&self, handle: u64) -> Result<(), Fault> {
        if handle == 0 {
            return Ok(());
        }
        OBJECTS
            .remove(self.number, handle)
            .map_err(|unknown| self.refuse(handle, unknown))
    }

    #[cold]
    fn refuse(&self, handle: u64, unknown: Unknown) -> Fault {
        let name = self.name;
        Fault::Handle(match unknown {
            _ if handle == 0 => format!("the {name} is 0: give the handle of a {name}"),
            Unknown::Freed => format!(
                "{handle:#x} was a {name} and has been freed: do not use a handle after it was freed"
            ),
            Unknown::Foreign(number) if number != self.number => {
                match NAMES.get(usize::from(number)).filter(|_| number != 0) {
                    Some(other) => {
                        format!("{handle:#x} is a handle of a {other}: give one of a {name}")
                    }
                    None => format!("{handle:#x} is no handle: give one of a {name}"),
                }
            }
            Unknown::Foreign(_) => {
                format!("{handle:#x} was never a handle of this process: give one of a {name}")
            }
        })
    }
}

/// Makes a handle of an object.
pub(crate) fn insert(object: Object) -> Result<u64, Fault> {
    let number = match &object {
        Object::Config(_) => CONFIG.number,
        Object::Communicator(_) => COMMUNICATOR.number,
        Object::Memory(_) => MEMORY.number,
        Object::Operation(_) => OPERATION.number,
        Object::Queue(_) => QUEUE.number,
    };
    OBJECTS.insert(number, object).map_err(|_| {
        Fault::Library(Error::Exhausted {
            what: format!("a handle of a {}", NAMES[usize::from(number)]),
            limit: format!("{SLOTS_MAX} handles are in use"),
            remedy: "free operations that have ended".into(),
        })
    })
}

/// What one thread uses at a time. It never waits: a thread that holds it may not exist any more in
/// a child that was forked meanwhile.
pub(crate) fn lock<'a, T>(what: &str, mutex: &'a Mutex<T>) -> Result<MutexGuard<'a, T>, Fault> {
    match mutex.try_lock() {
        Ok(guard) => Ok(guard),
        Err(TryLockError::Poisoned(poisoned)) => Ok(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => Err(invalid(format!(
            "another thread is in a call on this {what}: let one thread at a time use it"
        ))),
    }
}

impl<K> std::ops::Deref for Used<K> {
    type Target = K;

    #[inline]
    fn deref(&self) -> &K {
        (self.of)(&self.object).expect("the kind of a handle is that of its object")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_thread_in_a_call_on_one_object_is_refused_and_never_waits() {
        let mutex = Mutex::new(1);
        let held = lock("operation", &mutex).unwrap();
        let Err(Fault::Library(error)) = lock("operation", &mutex) else {
            panic!("it is held");
        };
        assert!(error.to_string().contains("one thread at a time"));
        drop(held);
        assert_eq!(*lock("operation", &mutex).unwrap(), 1);
    }

    #[test]
    fn a_wrong_handle_says_what_it_is() {
        let handle = insert(Object::Config(Mutex::default())).unwrap();
        let text = |handle| match QUEUE.get(handle) {
            Err(Fault::Handle(text)) => text,
            _ => panic!("{handle:#x} is no queue"),
        };
        assert!(text(0).contains("the queue is 0"));
        assert!(text(handle).contains("is a handle of a config"));
        assert!(text(7).contains("is no handle"));
        assert!(text(5 << 56 | 1 << 24 | 0xff_ffff).contains("was never a handle"));
        CONFIG.free(handle).unwrap();
        assert!(CONFIG.free(handle).is_err());
    }
}
