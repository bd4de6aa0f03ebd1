//! Settings of the `verbs` transport.

use super::field::{Field, check_timeout, parse_choice};
use crate::error::{Error, Result};
use std::time::Duration;

const SLOTS: Field = Field::new("verbs.slots", "LINERATE_VERBS_SLOTS", (8, 1024));
const CHUNK_BYTES: Field = Field {
    unit: super::UNIT,
    ..Field::new(
        "verbs.chunk_bytes",
        "LINERATE_VERBS_CHUNK_BYTES",
        (4 << 10, 64 << 20),
    )
};
const CACHED_BYTES: Field = Field::new(
    "verbs.cached_bytes",
    "LINERATE_VERBS_CACHED_BYTES",
    (0, u64::MAX),
);
const GID_INDEX: Field = Field::new("verbs.gid_index", "LINERATE_VERBS_GID_INDEX", (0, 255));
const TRAFFIC_CLASS: Field = Field::new(
    "verbs.traffic_class",
    "LINERATE_VERBS_TRAFFIC_CLASS",
    (0, 255),
);
const SERVICE_LEVEL: Field = Field::new(
    "verbs.service_level",
    "LINERATE_VERBS_SERVICE_LEVEL",
    (0, 15),
);
const ACK_TIMEOUT: Field = Field::new("verbs.ack_timeout", "LINERATE_VERBS_ACK_TIMEOUT", (8, 22));
const QUEUE_PAIRS: Field = Field::new("verbs.queue_pairs", "LINERATE_VERBS_QUEUE_PAIRS", (1, 8));
const MTU_BYTES: Field = Field::new("verbs.mtu_bytes", "LINERATE_VERBS_MTU", (256, 4096));
const INLINE_BYTES: Field = Field::new(
    "verbs.inline_bytes",
    "LINERATE_VERBS_INLINE_BYTES",
    (0, 1024),
);
const SIGNAL_EVERY: Field =
    Field::new("verbs.signal_every", "LINERATE_VERBS_SIGNAL_EVERY", (1, 64));
const BREAK_AFTER: Field = Field::new(
    "verbs.break_after",
    "LINERATE_VERBS_BREAK_AFTER",
    (1, u64::MAX),
);

/// Settings of the `verbs` transport.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerbsSettings {
    /// Slots of a ring, per peer and direction: how many short messages, signals and announcements
    /// may be under way. 8 to 1024. Every slot takes 4160 bytes on both sides; receives, completion
    /// queues and queue pairs grow with it, so lower it where a device has too few entries for many
    /// ranks. All ranks need the same. Default: 64 in jobs of up to 127 ranks; in larger jobs as
    /// many as fit 64 MiB if all peers are used, at least 8. `LINERATE_VERBS_SLOTS`.
    pub slots: Option<u32>,
    /// Longest piece of a long message, put or get that is posted at once. Default 1 MiB, 4 KiB to
    /// 64 MiB. Shorter where short messages wait too long behind long ones.
    /// `LINERATE_VERBS_CHUNK_BYTES`.
    pub chunk_bytes: u32,
    /// Bytes of memory of callers that stay registered after a call, at most, so that the next call
    /// on them is not staged. Default 16 GiB; 0: none. They are locked. The registration of memory
    /// that is unmapped ends, which takes a system that lets a process use `userfaultfd`; elsewhere
    /// nothing stays registered. `LINERATE_VERBS_CACHED_BYTES`.
    pub cached_bytes: u64,
    /// Index in the port's table of GIDs. Default: RoCEv2 with an IPv4 address, as `linerate info`
    /// shows it. `LINERATE_VERBS_GID_INDEX`.
    pub gid_index: Option<u32>,
    /// The rank's number among those of its host, by which they take turns among ports that are
    /// alike. Default: what the ranks find out when they meet; without a meeting the rank itself.
    pub local_rank: Option<u32>,
    /// How many ranks its host has: they share its NICs of EFA. Default: what the ranks find out
    /// when they meet; without a meeting each uses one.
    pub local_ranks: Option<u32>,
    /// Traffic class of the IP header (DSCP in its upper six bits). Default 0; what the switches
    /// keep free of losses. `LINERATE_VERBS_TRAFFIC_CLASS`.
    pub traffic_class: u8,
    /// Service level on InfiniBand, priority on Ethernet. Default 0, at most 15.
    /// `LINERATE_VERBS_SERVICE_LEVEL`.
    pub service_level: u8,
    /// How long a device waits for an acknowledgement before it sends again: 4.096 us * 2^value;
    /// after 7 times the queue pair has failed. Default 14 (67 ms, so that a dead link is noticed
    /// after half a second); 8 to 22. More where peers are so slow that queue pairs fail without a
    /// fault. `LINERATE_VERBS_ACK_TIMEOUT`.
    pub ack_timeout: u8,
    /// Whether devices may let writes of regions overtake each other (PCIe relaxed ordering).
    /// Default on: faster on some hosts, and the library waits for completions, which overtake
    /// nothing. `LINERATE_VERBS_RELAXED_ORDERING=on|off`.
    pub is_relaxed: bool,
    /// A peer that no queue pair reaches for this time has failed. Default 20 s.
    /// `LINERATE_VERBS_TIMEOUT`, seconds.
    pub timeout: Duration,
    /// Queue pairs per device and peer. Default 1, 1 to 8 for all devices together. More where one
    /// does not fill the link: some devices serve each queue pair with one engine, and some
    /// networks choose a path for each. `LINERATE_VERBS_QUEUE_PAIRS`.
    pub queue_pairs: u32,
    /// Payload of a packet at most: 256 to 4096, a power of two. Default: what the ports of both
    /// sides have. Less is only good for comparing. `LINERATE_VERBS_MTU`.
    pub mtu_bytes: Option<u32>,
    /// Posts of at most this many bytes are copied into the post, so that the device need not fetch
    /// them: half a microsecond over PCIe. Default 220 (as perftest for latency), 0 to 1024; a
    /// device that has no room for this many uses none. `LINERATE_VERBS_INLINE_BYTES`.
    pub inline_bytes: u32,
    /// One post in this many makes a completion, and so does the last post of each doorbell.
    /// Default 16, 1 to 64. `LINERATE_VERBS_SIGNAL_EVERY`.
    pub signal_every: u32,
    /// Atomic operations are done by devices, not by the processor of the word's owner. This is
    /// faster, and `perf` measures it. Default off, because clause 20 of [`crate::transport`] does
    /// not hold then: they are atomic only among those of one device, not with what processors do,
    /// and one whose answer a fault has lost ends as flushed although it may have been done.
    /// `LINERATE_VERBS_ATOMICS=owner|device`.
    pub has_device_atomics: bool,
    /// Puts of an aligned word of 1, 2, 4 or 8 bytes are writes without immediate data, as
    /// perftest's are, if nothing waits to leave before them. The owner's processor then has
    /// nothing to do for them. It is for owners that look at the word all the time, and for `perf`.
    /// Default off, and set in code only: a sleeping owner is not woken (clause 17 of
    /// [`crate::transport`]), the word may be there before what was put earlier (clause 8), a word
    /// whose queue pair fails ends as flushed although it may have come, and the latest words
    /// complete late.
    pub has_plain_words: bool,
    /// Brings the queue pair into the error state after this many pieces of long transfers, once:
    /// for tests. `LINERATE_VERBS_BREAK_AFTER`.
    pub break_after: Option<u64>,
}

impl Default for VerbsSettings {
    fn default() -> VerbsSettings {
        VerbsSettings {
            slots: None,
            chunk_bytes: 1 << 20,
            cached_bytes: 16 << 30,
            gid_index: None,
            local_rank: None,
            local_ranks: None,
            traffic_class: 0,
            service_level: 0,
            ack_timeout: 14,
            is_relaxed: true,
            timeout: Duration::from_secs(20),
            queue_pairs: 1,
            mtu_bytes: None,
            inline_bytes: 220,
            signal_every: 16,
            has_device_atomics: false,
            has_plain_words: false,
            break_after: None,
        }
    }
}

impl VerbsSettings {
    /// Settings from named values, such as the process's environment.
    pub fn from_lookup(lookup: impl Fn(&str) -> Option<String>) -> Result<VerbsSettings> {
        let lookup = |name: &str| lookup(name).filter(|text| !text.is_empty());
        let default = VerbsSettings::default();
        let number = |field: &Field| -> Result<Option<u64>> {
            let text = lookup(field.variable);
            text.map(|text| field.parse(&text)).transpose()
        };
        let long = |field: &Field, default: u32| -> Result<u32> {
            Ok(number(field)?.map_or(default, |n| n as u32))
        };
        let short = |field: &Field, default: u8| -> Result<u8> {
            Ok(number(field)?.map_or(default, |n| n as u8))
        };
        let chunk_bytes = match lookup(CHUNK_BYTES.variable) {
            Some(text) => CHUNK_BYTES.parse_size(&text)? as u32,
            None => default.chunk_bytes,
        };
        let cached_bytes = match lookup(CACHED_BYTES.variable) {
            Some(text) => CACHED_BYTES.parse_size(&text)?,
            None => default.cached_bytes,
        };
        let on_or_off = [("on", true), ("off", false)];
        let is_relaxed = parse_choice(&lookup, "LINERATE_VERBS_RELAXED_ORDERING", &on_or_off)?;
        let atomics = [("owner", false), ("device", true)];
        let has_device_atomics = parse_choice(&lookup, "LINERATE_VERBS_ATOMICS", &atomics)?;
        let timeout = match lookup("LINERATE_VERBS_TIMEOUT") {
            Some(text) => super::parse_timeout("LINERATE_VERBS_TIMEOUT", &text)?,
            None => default.timeout,
        };
        let settings = VerbsSettings {
            slots: number(&SLOTS)?.map(|n| n as u32),
            chunk_bytes,
            cached_bytes,
            gid_index: number(&GID_INDEX)?.map(|n| n as u32),
            local_rank: None,
            local_ranks: None,
            traffic_class: short(&TRAFFIC_CLASS, default.traffic_class)?,
            service_level: short(&SERVICE_LEVEL, default.service_level)?,
            ack_timeout: short(&ACK_TIMEOUT, default.ack_timeout)?,
            is_relaxed: is_relaxed.unwrap_or(default.is_relaxed),
            timeout,
            queue_pairs: long(&QUEUE_PAIRS, default.queue_pairs)?,
            mtu_bytes: number(&MTU_BYTES)?.map(|n| n as u32),
            has_device_atomics: has_device_atomics.unwrap_or(default.has_device_atomics),
            has_plain_words: default.has_plain_words,
            inline_bytes: long(&INLINE_BYTES, default.inline_bytes)?,
            signal_every: long(&SIGNAL_EVERY, default.signal_every)?,
            break_after: number(&BREAK_AFTER)?,
        };
        settings.check().map(|()| settings)
    }

    /// Checks every field, wherever it was set.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] with the field, its value and what is allowed.
    pub fn check(&self) -> Result<()> {
        SLOTS.check_some(self.slots)?;
        CHUNK_BYTES.check(self.chunk_bytes.into())?;
        GID_INDEX.check_some(self.gid_index)?;
        SERVICE_LEVEL.check(self.service_level.into())?;
        ACK_TIMEOUT.check(self.ack_timeout.into())?;
        check_timeout("verbs.timeout (LINERATE_VERBS_TIMEOUT)", self.timeout)?;
        QUEUE_PAIRS.check(self.queue_pairs.into())?;
        MTU_BYTES.check_some(self.mtu_bytes)?;
        if let Some(mtu) = self.mtu_bytes.filter(|mtu| !mtu.is_power_of_two()) {
            return Err(Error::invalid(format!(
                "{} ({}) is {mtu}: 256, 512, 1024, 2048 or 4096",
                MTU_BYTES.name, MTU_BYTES.variable
            )));
        }
        INLINE_BYTES.check(self.inline_bytes.into())?;
        SIGNAL_EVERY.check(self.signal_every.into())?;
        BREAK_AFTER.check_some(self.break_after)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(name: &'static str, value: &'static str) -> Result<VerbsSettings> {
        VerbsSettings::from_lookup(|asked| (asked == name).then(|| value.to_string()))
    }

    #[test]
    fn a_bad_value_names_its_knob_and_what_is_allowed() {
        for (name, value, allowed) in [
            ("LINERATE_VERBS_SLOTS", "7", "8 to 1024"),
            ("LINERATE_VERBS_CHUNK_BYTES", "1K", "4096"),
            ("LINERATE_VERBS_GID_INDEX", "256", "0 to 255"),
            ("LINERATE_VERBS_TRAFFIC_CLASS", "-1", "0 to 255"),
            ("LINERATE_VERBS_SERVICE_LEVEL", "16", "0 to 15"),
            ("LINERATE_VERBS_ACK_TIMEOUT", "31", "8 to 22"),
            ("LINERATE_VERBS_RELAXED_ORDERING", "yes", "on or off"),
            ("LINERATE_VERBS_TIMEOUT", "never", "seconds"),
            ("LINERATE_VERBS_QUEUE_PAIRS", "9", "1 to 8"),
            ("LINERATE_VERBS_MTU", "1500", "1024, 2048"),
            ("LINERATE_VERBS_MTU", "128", "256 to 4096"),
            ("LINERATE_VERBS_INLINE_BYTES", "2K", "0 to 1024"),
            ("LINERATE_VERBS_SIGNAL_EVERY", "0", "1 to 64"),
            ("LINERATE_VERBS_BREAK_AFTER", "0", "1 to"),
        ] {
            let text = settings(name, value).unwrap_err().to_string();
            assert!(text.contains(name) && text.contains(allowed), "{text}");
        }
    }

    #[test]
    fn good_values_are_taken() {
        let slots = settings("LINERATE_VERBS_SLOTS", "16").unwrap().slots;
        assert_eq!(slots, Some(16));
        let chunk = settings("LINERATE_VERBS_CHUNK_BYTES", "16K").unwrap();
        assert_eq!(chunk.chunk_bytes, 16384);
        assert_eq!(settings("OTHER", "").unwrap(), VerbsSettings::default());
        let one = settings("LINERATE_VERBS_BREAK_AFTER", "3").unwrap();
        assert_eq!(one.break_after, Some(3));
    }
}
