//! What handles name, and the one table of them.

use crate::config::Settings;
use crate::fusion::Fused;
use crate::partial::Rounds;
use crate::sparse::Steps;
use crate::status::{Fault, invalid};
use crate::table::{Pinned, SLOTS_MAX, Table, Unknown};
use linerate::{Buffer, Communicator, CompletionQueue, Error, Operation};
use std::sync::{Mutex, MutexGuard, TryLockError};

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

/// The kinds: constant, number in handles, name, variant and type of an object.
macro_rules! kinds {
    ($($constant:ident = $number:literal, $name:literal: $variant:ident($object:ty);)*) => {
        /// An object of C.
        pub(crate) enum Object {
            $($variant($object),)*
        }

        impl Object {
            fn kind(&self) -> u8 {
                match self {
                    $(Object::$variant(_) => $number,)*
                }
            }
        }

        /// The names by number.
        const NAMES: &[&str] = &["nothing", $($name),*];

        $(pub(crate) const $constant: Kind<$object> = Kind {
            number: $number,
            name: $name,
            of: |object| match object {
                Object::$variant(object) => Some(object),
                _ => None,
            },
        };)*
    };
}

kinds! {
    CONFIG = 1, "config": Config(Mutex<Settings>);
    COMMUNICATOR = 2, "communicator": Communicator(Communicator);
    MEMORY = 3, "memory": Memory(Buffer<u8>);
    OPERATION = 4, "operation": Operation(Mutex<Operation>);
    QUEUE = 5, "queue": Queue(CompletionQueue);
    FUSION = 6, "fusion buffer": Fusion(Fused);
    PARTIAL = 7, "partial allreduce": Partial(Rounds);
    SPARSE = 8, "sparse allreduce": Sparse(Box<Mutex<Steps>>);
}

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
    let number = object.kind();
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
        assert_eq!(NAMES[usize::from(SPARSE.number)], SPARSE.name);
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
