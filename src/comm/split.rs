//! [`Communicator::split`] and [`Communicator::duplicate`]: communicators made from another one.

use super::communicator::Communicator;
use super::connect::{self, Common, Origin};
use super::driving::Driving;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::types::Rank;

/// The first byte of a rank's blob: its contact follows (`FINE`), or the text of an error
/// (`FAILED`).
const FINE: u8 = 1;
const FAILED: u8 = 0;

impl Communicator {
    /// Splits the communicator: the ranks that give one `color` form a new communicator, ordered by
    /// `key`, then by their rank here. A rank without a color takes part in the call and gets
    /// `None`. Collective: every rank calls it, in one order with its other collectives. Like
    /// MPI_Comm_split and ncclCommSplit.
    ///
    /// The new communicator has connections, memory for signals and an order of operations of its
    /// own. So both may be used at the same time, also by several threads, and in any order on
    /// different ranks: a wait on one also drives the others of this process. The new one goes on
    /// when this one is dropped, fails or is aborted. The death of a rank fails every communicator
    /// that it belongs to. Buffers of one may be used with the other. The new one has the settings
    /// and the progress thread of this one.
    ///
    /// ```
    /// use linerate::{Communicator, Config};
    /// let job = format!("split-{}", std::process::id());
    /// let run = |rank| -> linerate::Result<(u32, u32)> {
    ///     let world = Communicator::join(rank, 3, &job, Config::default())?;
    ///     let part = world.split(Some(rank % 2), -(rank as i32))?.expect("it named a colour");
    ///     Ok((part.rank(), part.ranks()))
    /// };
    /// let places = std::thread::scope(|scope| {
    ///     let ranks: Vec<_> = (0..3).map(|rank| scope.spawn(move || run(rank))).collect();
    ///     ranks.into_iter().map(|rank| rank.join().unwrap()).collect::<Result<Vec<_>, _>>()
    /// })?;
    /// assert_eq!(places, [(1, 2), (0, 1), (0, 2)]);
    /// # Ok::<(), linerate::Error>(())
    /// ```
    ///
    /// # Errors
    /// Any error of an operation on this communicator. [`Error::Bootstrap`] if a rank could not
    /// make or connect its part: then no rank of that color gets a communicator, the error on that
    /// rank has the reason, and this communicator still works. [`Error::InvalidArgument`] in a
    /// simulation.
    pub fn split(&self, color: Option<u32>, key: i32) -> Result<Option<Communicator>> {
        self.check_can_wait("split")?;
        let has_color = u64::from(color.is_some());
        let own = [has_color, u64::from(color.unwrap_or(0)), key as u32 as u64];
        let places: Vec<(Option<u32>, i32)> = self
            .gather_words(&own)?
            .chunks_exact(3)
            .map(|words| ((words[0] == 1).then_some(words[1] as u32), words[2] as i32))
            .collect();
        let members = members_of(&places, color);
        self.build_child(&members, true)
    }

    /// Makes a communicator of the same ranks in the same order, with an order of operations of its
    /// own. Collective. Like MPI_Comm_dup. [`Communicator::split`] says what the two share, and its
    /// errors.
    pub fn duplicate(&self) -> Result<Communicator> {
        self.check_can_wait("duplicate")?;
        let members: Vec<Rank> = (0..self.ranks()).collect();
        let child = self.build_child(&members, true)?;
        Ok(child.expect("every rank is a member"))
    }

    /// As [`Communicator::duplicate`], for a service that drives the new communicator with a thread
    /// of its own: waits on other communicators do not drive it.
    pub(super) fn duplicate_apart(&self) -> Result<Communicator> {
        self.check_can_wait("duplicate")?;
        let members: Vec<Rank> = (0..self.ranks()).collect();
        let child = self.build_child(&members, false)?;
        Ok(child.expect("every rank is a member"))
    }

    /// Makes the child of these ranks of the parent, in this order; `None` if this rank is not
    /// among them. Every rank of the parent takes part in every exchange, even if its own part has
    /// failed, so that no rank waits for one that has given up. `is_member`: the child joins the
    /// parent's family.
    fn build_child(&self, members: &[Rank], is_member: bool) -> Result<Option<Communicator>> {
        let driving = self.driving()?;
        let own = members.iter().position(|&member| member == self.rank());
        let opened =
            own.map(|rank| connect::open(rank as Rank, members.len() as u32, &self.inner.config));
        let blob = match &opened {
            None => Vec::new(),
            Some(Ok((_, contact))) => [&[FINE], contact.as_slice()].concat(),
            Some(Err(error)) => [&[FAILED], error.to_string().as_bytes()].concat(),
        };
        let blobs = self.gather_blobs(&blob)?;
        let connected = match opened {
            None => Ok(None),
            Some(Err(error)) => Err(error),
            Some(Ok((engine, _))) => connect_child(driving, engine, members, &blobs).map(Some),
        };
        let failed = self.gather_words(&[u64::from(connected.is_err())])?;
        let Some((engine, common)) = connected? else {
            return Ok(None);
        };
        if let Some(rank) = members.iter().find(|&&member| failed[member as usize] != 0) {
            return Err(Error::Bootstrap(format!(
                "rank {rank} could not connect to the others of a split; see that rank's error"
            )));
        }
        let origin = Origin::of(self, is_member)?;
        Ok(Some(connect::finish(engine, origin, false, &common)))
    }
}

fn connect_child(
    driving: &Driving,
    mut engine: Engine,
    members: &[Rank],
    blobs: &[Vec<u8>],
) -> Result<(Engine, Common)> {
    let mut contacts = Vec::with_capacity(members.len());
    for &member in members {
        match blobs[member as usize].split_first() {
            Some((&FINE, contact)) => contacts.push(contact.to_vec()),
            Some((_, text)) => {
                let text = String::from_utf8_lossy(text);
                let text = format!("rank {member} could not take part in a split: {text}");
                return Err(Error::Bootstrap(text));
            }
            None => {
                let text = format!("rank {member} says nothing of its part of a split");
                return Err(Error::Malformed(text));
            }
        }
    }
    let common = connect::connect(&mut engine, &contacts, &driving.clock, || {
        // The caller may have operations under way that must end before peers can make this call.
        driving.family().drive(None);
    })?;
    Ok((engine, common))
}

/// The ranks that gave this color, ordered by (key, rank); none without a color.
fn members_of(places: &[(Option<u32>, i32)], color: Option<u32>) -> Vec<Rank> {
    let is_member = |rank: &Rank| color.is_some() && places[*rank as usize].0 == color;
    let mut members: Vec<Rank> = (0..places.len() as Rank).filter(is_member).collect();
    members.sort_by_key(|&rank| (places[rank as usize].1, rank));
    members
}

#[cfg(test)]
mod tests {
    use super::members_of;

    #[test]
    fn members_are_ordered_by_key_then_by_rank() {
        let places = [
            (Some(7), 0),
            (None, -5),
            (Some(7), -1),
            (Some(0), 3),
            (Some(7), 0),
            (Some(7), i32::MIN),
        ];
        assert_eq!(members_of(&places, Some(7)), [5, 2, 0, 4]);
        assert_eq!(members_of(&places, Some(0)), [3]);
        assert!(members_of(&places, Some(1)).is_empty());
        assert!(members_of(&places, None).is_empty());
    }
}
