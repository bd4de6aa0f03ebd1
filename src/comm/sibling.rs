//! [`Communicator::sibling`]: a communicator of some ranks of another one, made by these alone.

use super::communicator::Communicator;
use super::connect::{self, Origin};
use crate::bootstrap::{BusyClock, Exchange, GroupKeys, Meeting};
use crate::error::{Error, Result};
use crate::types::Rank;

/// Members that an error names one by one.
const SHOWN_MAX: usize = 16;

impl Communicator {
    /// A new communicator of some ranks of this one. `members` are their numbers here, and their
    /// order is that of the new ranks. Collective over the members alone: the other ranks do not
    /// take part, and the cost does not depend on how many others there are. Like
    /// MPI_Comm_create_group and torch's `new_group` with `use_local_synchronization`.
    ///
    /// It uses no connection of this communicator, which may have failed, or have ranks that are
    /// dead or busy. The members meet as in [`Communicator::join_by`], by an [`Exchange`] and a
    /// `name` of 1 to 200 bytes, which is equal on all members and used only once in the exchange.
    /// A member waits for the others at most for the configured timeout, and drives this
    /// communicator and all of its family meanwhile. Several threads may make siblings at the same
    /// time. If one thread makes several, all ranks make them in the same order.
    ///
    /// The two are one family, as with [`Communicator::split`]: a wait on one also drives the
    /// other, and buffers of one may be used with the other. The new one has the settings of this
    /// one, and goes on when this one is dropped or fails.
    ///
    /// ```
    /// use linerate::options::Exchange;
    /// use linerate::{Communicator, Config};
    /// use std::collections::HashMap;
    /// use std::sync::Mutex;
    /// use std::time::Duration;
    ///
    /// type Fallible<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;
    ///
    /// /// A map that the threads of this process share; it does not wait.
    /// #[derive(Default)]
    /// struct Map(Mutex<HashMap<String, Vec<u8>>>);
    ///
    /// impl Exchange for Map {
    ///     fn put(&self, key: &str, value: &[u8], _: Duration) -> Fallible<()> {
    ///         self.0.lock().unwrap().insert(key.into(), value.into());
    ///         Ok(())
    ///     }
    ///
    ///     fn get(&self, key: &str, _: Duration) -> Fallible<Option<Vec<u8>>> {
    ///         Ok(self.0.lock().unwrap().get(key).cloned())
    ///     }
    /// }
    ///
    /// let exchange = Map::default();
    /// let run = |rank| -> linerate::Result<Option<(u32, u32)>> {
    ///     let world = Communicator::join_by(rank, 3, "world", &exchange, Config::default())?;
    ///     if rank == 0 {
    ///         return Ok(None); // It takes no part, and may leave.
    ///     }
    ///     let pair = world.sibling(&[2, 1], "pair", &exchange)?;
    ///     pair.barrier()?;
    ///     Ok(Some((pair.rank(), pair.ranks())))
    /// };
    /// let places = std::thread::scope(|scope| {
    ///     let ranks = [0, 1, 2].map(|rank| scope.spawn(move || run(rank)));
    ///     ranks.map(|rank| rank.join().unwrap().unwrap())
    /// });
    /// assert_eq!(places, [None, Some((1, 2)), Some((0, 2))]);
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] before anything is exchanged: `members` is empty, names a rank
    /// twice or one that is not below [`Communicator::ranks`], or does not name the caller; the
    /// name is out of range; this is a simulation. [`Error::Bootstrap`] and [`Error::Malformed`] as
    /// [`Communicator::join_by`]; ranks in their text are those of the new communicator. An error
    /// leaves this communicator as it is.
    pub fn sibling(
        &self,
        members: &[Rank],
        name: &str,
        exchange: &dyn Exchange,
    ) -> Result<Communicator> {
        self.check_can_wait("sibling")?;
        let driving = self.driving()?;
        let own = place_among(members, self.rank(), self.ranks())?;
        let ranks = members.len() as u32;
        let is_one_host = self.inner.places.is_empty();
        let keys = GroupKeys::new((own, ranks), name, exchange)?.of_members(members, is_one_host);
        let config = &self.inner.config;
        // The caller may have operations under way that must end before peers can make this call.
        let meanwhile = || {
            driving.family().drive(None);
        };
        let clock = BusyClock::new(&driving.clock, &meanwhile);
        let make = || -> Result<Communicator> {
            let meeting = Meeting::by_exchange(&keys, config, clock)?;
            let (mut engine, blob) = match connect::open(own, ranks, config) {
                Ok(opened) => opened,
                Err(error) => return Err(meeting.decline(error, clock)),
            };
            let contacts = meeting.exchange(blob, clock)?;
            let common = connect::connect(&mut engine, &contacts, &driving.clock, meanwhile)?;
            Ok(connect::finish(
                engine,
                Origin::of(self, true)?,
                false,
                &common,
            ))
        };
        make().map_err(|error| match error {
            Error::Bootstrap(text) => Error::Bootstrap(format!(
                "{text}; these are ranks of '{name}', which are {} of the communicator that it is made from",
                shown(members)
            )),
            error => error,
        })
    }
}

/// The place of a rank among the members. An error unless they are distinct, below `ranks`, and
/// contain the rank.
fn place_among(members: &[Rank], rank: Rank, ranks: u32) -> Result<Rank> {
    let mut sorted = members.to_vec();
    sorted.sort_unstable();
    let highest = sorted.last().filter(|&&highest| highest >= ranks);
    let twins = sorted.windows(2).find(|pair| pair[0] == pair[1]);
    let wrong = match (highest, twins) {
        (Some(highest), _) => Some(format!("rank {highest} is none of the {ranks} ranks")),
        (None, Some(twins)) => Some(format!("rank {} is named twice", twins[0])),
        (None, None) if !members.contains(&rank) => Some(format!(
            "they do not name rank {rank}, which calls it, and only members do"
        )),
        (None, None) => None,
    };
    if let Some(wrong) = wrong {
        return Err(Error::invalid(format!(
            "members {} of a sibling: {wrong}; each member is named once, by its rank in the communicator that it is made from",
            shown(members)
        )));
    }
    let place = members.iter().position(|&member| member == rank);
    Ok(place.expect("it is named") as Rank)
}

/// Members, for people.
fn shown(members: &[Rank]) -> String {
    match members.get(..SHOWN_MAX) {
        Some(first) if members.len() > SHOWN_MAX => {
            format!("{first:?} and {} more", members.len() - SHOWN_MAX)
        }
        _ => format!("{members:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::place_among;
    use crate::limits::RANKS_MAX;

    #[test]
    fn members_are_ranks_each_once_and_the_caller_is_one() {
        assert_eq!(place_among(&[3, 0, 2], 2, 4), Ok(2));
        assert_eq!(place_among(&[0], 0, 1), Ok(0));
        let all: Vec<u32> = (0..RANKS_MAX).rev().collect();
        assert_eq!(place_among(&all, RANKS_MAX - 1, RANKS_MAX), Ok(0));
        let text = |members: &[u32]| place_among(members, 1, 4).unwrap_err().to_string();
        for (members, words) in [
            (&[][..], "do not name rank 1"),
            (&[0, 2], "do not name rank 1"),
            (&[1, 4], "rank 4 is none of the 4 ranks"),
            (&[1, 2, 1], "rank 1 is named twice"),
            (&[1, u32::MAX], "4294967295 is none"),
        ] {
            assert!(text(members).contains(words), "{}", text(members));
        }
        let long = text(&[2; 100]);
        assert!(long.contains("and 84 more") && long.len() < 300, "{long}");
    }
}
