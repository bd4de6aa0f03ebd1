//! Somebody between two ranks: takes the connections of one, opens one to the other for each, and
//! carries the bytes, which it may look at and change.

use linerate::unstable::wire::{HANDSHAKE_BYTES, Tls};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

/// Towards the one that is connected to, or back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    Up,
    Down,
}

/// Sees and changes bytes of the first connection; the number says how many came before them.
type Change = dyn Fn(Direction, (u64, &mut [u8])) + Send + Sync;

struct Shared {
    to: Mutex<Option<SocketAddr>>,
    heard: [Mutex<Vec<u8>>; 2],
    change: Box<Change>,
}

pub struct Between {
    pub port: u16,
    shared: Arc<Shared>,
}

impl Between {
    /// Carries everything, as changed.
    pub fn new(change: impl Fn(Direction, (u64, &mut [u8])) + Send + Sync + 'static) -> Between {
        Between::serve(Box::new(change), |shared, is_first, outer, inner| {
            let [from, to] = [&outer, &inner].map(|stream| stream.try_clone().unwrap());
            let up = shared.clone();
            thread::spawn(move || carry(&up, Direction::Up, is_first, (from, to)));
            carry(shared, Direction::Down, is_first, (inner, outer));
        })
    }

    /// Carries the four messages of the challenge, and then is the other end of TLS itself.
    pub fn pretending(tls: impl Fn() -> Tls + Send + Sync + 'static) -> Between {
        Between::serve(Box::new(|_, _| {}), move |_, _, mut outer, mut inner| {
            let mut message = [0; HANDSHAKE_BYTES];
            for _ in 0..2 {
                outer.read_exact(&mut message).unwrap();
                inner.write_all(&message).unwrap();
                inner.read_exact(&mut message).unwrap();
                outer.write_all(&message).unwrap();
            }
            let mut tls = tls();
            while let Ok(bytes @ 1..) = outer.read(tls.space()) {
                tls.note_received(bytes);
                let is_over = tls.open(&mut |opened| opened.len()).is_err();
                if is_over || outer.write_all(tls.unsent()).is_err() {
                    break;
                }
                tls.note_sent(tls.unsent().len());
            }
        })
    }

    fn serve(
        change: Box<Change>,
        each: impl Fn(&Arc<Shared>, bool, TcpStream, TcpStream) + Send + Sync + 'static,
    ) -> Between {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let shared = Arc::new(Shared {
            to: Mutex::new(None),
            heard: Default::default(),
            change,
        });
        let (own, each) = (shared.clone(), Arc::new(each));
        // Ends with the process.
        thread::spawn(move || {
            for (number, outer) in listener.incoming().enumerate() {
                let to = own.to.lock().unwrap().expect("set before anybody connects");
                let (Ok(outer), Ok(inner)) = (outer, TcpStream::connect(to)) else {
                    continue;
                };
                let (own, each) = (own.clone(), each.clone());
                thread::spawn(move || each(&own, number == 0, outer, inner));
            }
        });
        Between { port, shared }
    }

    /// Where it carries them to.
    pub fn leads_to(&self, place: SocketAddr) {
        *self.shared.to.lock().unwrap() = Some(place);
    }

    /// Everything that came on all connections.
    pub fn heard(&self, direction: Direction) -> Vec<u8> {
        self.shared.heard[direction as usize]
            .lock()
            .unwrap()
            .clone()
    }
}

fn carry(
    shared: &Shared,
    direction: Direction,
    is_first: bool,
    (mut from, mut to): (TcpStream, TcpStream),
) {
    let mut bytes = vec![0; 64 * 1024];
    let mut before = 0;
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        let bytes = &mut bytes[..count];
        shared.heard[direction as usize]
            .lock()
            .unwrap()
            .extend(&*bytes);
        if is_first {
            (shared.change)(direction, (before, bytes));
        }
        before += count as u64;
        if to.write_all(bytes).is_err() {
            break;
        }
    }
    let _ = (to.shutdown(Shutdown::Write), from.shutdown(Shutdown::Read));
}
