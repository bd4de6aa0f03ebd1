//! Memory that is taken back from the messages and puts which wait to be sent
//! ([`crate::transport::Transport::withdraw`]).
//!
//! Nothing of them is sent from there any more. Two cases need more than that.
//!
//! * The rest of a chunk that has been begun is sent from a copy, because frames that follow on its
//!   rail, perhaps the news of a failure, need its end. The peer gets the bytes as they were, and
//!   the message only if this was the last of it.
//! * The kernel reads what it was given without a copy (`zerocopy.rs`) whenever it sends that, or
//!   sends it again. No call makes it copy, so the rail is cut, and replaced as one that is lost
//!   (`losses.rs`). The stream goes on over the next one.
//!
//! What is in the stream is a copy anyway.

use super::Peer;
use crate::kernel;
use crate::memory::Region;
use crate::transport::Outcome;
use crate::transport::tcp::rail::Rail;
use crate::transport::tcp::shared::Shared;
use std::os::fd::AsFd;
use std::time::Duration;

/// How often a rank looks whether the kernel has released the pages of a rail that is cut, and the
/// pause between two looks. What has not left is dropped at once, and what a device is sending
/// takes microseconds: 20 ms are for one that is held up.
const RELEASE_LOOKS: u32 = 200;
const RELEASE_PAUSE: Duration = Duration::from_micros(100);

impl Peer {
    /// Ends every message and put of this rank that has not ended; true: rails are lost.
    pub fn withdraw(&mut self, shared: &mut Shared) -> bool {
        for token in self.transfers.withdraw() {
            shared
                .ends
                .complete(self.rank, token, Outcome::Cancelled, 0, 0);
        }
        let rails_before = self.rails.len();
        for at in (0..rails_before).rev() {
            let rail = &mut self.rails[at];
            // The chunk that is being sent is the last one.
            let last = rail.unacked.back();
            let is_kept = last.is_some_and(|piece| self.transfers.is_under_way(piece));
            let has_left = is_kept || rail.leave_memory();
            if !has_left || rail.zerocopy.is_holding(rail.socket.as_fd()) {
                rail.cut();
                self.lose_rail(at, "memory that it was to send was taken back", shared);
            }
        }
        self.rails.len() < rails_before
    }
}

impl Rail {
    /// The chunk that is being sent is not read where it lies any more; false: there is no memory
    /// for a copy.
    fn leave_memory(&mut self) -> bool {
        let Some(chunk) = &mut self.chunk else {
            return true;
        };
        if chunk.sent == 0 {
            self.chunk = None;
            self.unacked.pop_back();
            return true;
        }
        let bytes = chunk.view.len_bytes();
        let Ok(copy) = Region::private(bytes) else {
            return false;
        };
        let view = copy.view().part(0, bytes);
        kernel::copy(chunk.view, view);
        (chunk.view, chunk.copy) = (view, Some(copy));
        true
    }

    /// Ends the connection, where the kernel has pages of chunks, and drops what it holds.
    pub fn cut_if_held(&mut self) {
        if self.zerocopy.is_holding(self.socket.as_fd()) {
            self.cut();
        }
    }

    /// Ends the connection, and drops what the kernel holds of it. Returns when it has released the
    /// pages, or after a time: a device that holds them longer is stuck, and sends nothing.
    fn cut(&mut self) {
        // This is a reset, as from closing without lingering, but the socket stays and tells of the
        // pages.
        let _ = rustix::net::connect_unspec(&self.socket);
        for _ in 0..RELEASE_LOOKS {
            if !self.zerocopy.is_holding(self.socket.as_fd()) {
                return;
            }
            std::thread::sleep(RELEASE_PAUSE);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Time;
    use crate::transport::tcp::TcpTransport;
    use crate::transport::tcp::parking_tests::pair;
    use crate::transport::tcp::socket;
    use crate::transport::tcp::zerocopy::Zerocopy;
    use crate::transport::test_posts::TestPosts;
    use crate::transport::{Event, Transport};
    use rustix::io::Errno;
    use rustix::net::sockopt;
    use std::io::Read;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::OwnedFd;
    use std::sync::Arc;

    const BYTES: usize = 64 * 1024;

    #[test]
    fn what_the_kernel_holds_of_a_rail_that_is_cut_never_comes() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let out = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        out.set_nonblocking(true).unwrap();
        let (mut into, _) = listener.accept().unwrap();
        let mut rail = Rail::new(1, OwnedFd::from(out), None, true, String::new());
        if !rail.zerocopy.is_for(BYTES) {
            return println!("skipped: this kernel has no SO_ZEROCOPY");
        }
        let region = Region::private(BYTES).unwrap();
        kernel::fill(region.view(), 0xab);
        let mut sent = 0;
        loop {
            match socket::send_zerocopy(rail.socket.as_fd(), region.view()) {
                Ok(bytes) => sent += bytes,
                Err(Errno::AGAIN | Errno::NOBUFS) => break,
                Err(error) => panic!("{error}"),
            }
            rail.zerocopy.note_sent();
        }
        assert!(rail.zerocopy.is_holding(rail.socket.as_fd()));
        rail.cut_if_held();
        assert!(!rail.zerocopy.is_holding(rail.socket.as_fd()));
        kernel::fill(region.view(), 0xcd);
        let mut got = Vec::new();
        let end = into.read_to_end(&mut got);
        assert!(end.is_err(), "a connection that was cut has ended well");
        assert!(got.len() < sent, "{} of {sent} bytes", got.len());
        assert!(got.iter().all(|&byte| byte == 0xab));
    }

    /// Posts that have ended this way; nothing else happens.
    fn ended(transport: &mut TcpTransport, outcome: Outcome) -> u64 {
        let mut events = Vec::new();
        transport.poll(Time::default(), &mut events);
        transport.poll_slow(Time::default(), &mut events);
        for event in &events {
            let is_right = matches!(event, Event::Completion(end) if end.outcome == outcome);
            assert!(is_right, "{event:?}");
        }
        events.len() as u64
    }

    /// Messages of one chunk fill a connection, until one has left in part; the rest of it follows
    /// from a copy.
    #[test]
    fn a_chunk_that_has_left_in_part_comes_as_it_was() {
        const CHUNK: usize = 400_000;
        let (mut from, mut to, _) = pair(1);
        let region = Arc::new(Region::private(CHUNK).unwrap());
        let key = from.register(region.clone()).unwrap();
        let view = region.view().part(0, CHUNK).in_region(key, 0);
        kernel::fill(view, 1);
        let rail = &mut from.peers[1].rails_mut()[0];
        // This way the kernel holds copies.
        rail.zerocopy = Zerocopy::off();
        // Whatever the kernel's own limits are, a few messages fill it.
        sockopt::set_socket_send_buffer_size(&rail.socket, 64 << 10).unwrap();
        let mut sent = 0;
        while !from.peers[1].rails()[0].is_inside_chunk() {
            assert!(sent < 8, "more than what may wait without a receive");
            from.test_send(1, sent, 0, view, sent).unwrap();
            sent += 1;
        }
        from.withdraw();
        kernel::fill(view, 2);
        let places = Region::private(sent as usize * CHUNK).unwrap();
        for tag in 0..sent {
            let place = places.view().part(tag as usize * CHUNK, CHUNK);
            to.test_recv(0, tag, place, tag).unwrap();
        }
        let (mut received, mut cancelled) = (0, 0);
        let mut looks = 0..10_000_000;
        while received < sent {
            looks.next().expect("the last message does not come");
            cancelled += ended(&mut from, Outcome::Cancelled);
            received += ended(&mut to, Outcome::Done);
        }
        assert_eq!(cancelled, sent);
        let mut bytes = vec![0; places.view().len_bytes()];
        kernel::read(places.view(), 0, &mut bytes);
        let wrong = bytes[..sent as usize * CHUNK].iter().position(|&b| b != 1);
        assert_eq!(wrong, None);
    }
}
