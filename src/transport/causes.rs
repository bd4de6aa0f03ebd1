//! How the causes of failed peers begin, which tells what they prove.

/// How the cause of an [`Event::PeerFailed`](super::Event::PeerFailed) begins where the end of the
/// peer's process was seen on its own host.
pub const ENDED: &str = "its process ended";
/// How the cause begins where the peer has said goodbye.
pub const LEFT: &str = "it has left";
/// How the cause begins where the peer could not be reached. It may live behind a link that is cut
/// or a firewall.
pub const UNREACHABLE: &str = "it cannot be reached";

/// Whether a peer that has failed for this cause is certain not to go on. After any other cause it
/// may live.
pub(crate) fn proves_end(cause: &str) -> bool {
    cause.starts_with(ENDED) || cause.starts_with(LEFT)
}
