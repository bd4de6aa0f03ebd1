//! What the living ranks do after a death that a partial allreduce survives. They make a new
//! communicator, fetch the results that not all of them have, and then repeat the rounds that had
//! begun. [`crate::partial`] decides all of this; this file carries it out.
//!
//! A recovery blocks the thread that drives, at most for the timeout, as a rebuild does. If another
//! rank dies meanwhile, the recovery begins again, and each rank then says anew which results it
//! has.

use super::rounds::{Rounds, is_death};
use crate::comm::call::Call;
use crate::comm::raw::RawBuffer;
use crate::error::{Error, Result};
use crate::partial::{Recovery, STANDING_WORDS, Standing};
use crate::time::Time;
use crate::types::{Collective, DataType, Rank};

impl Rounds {
    /// Goes on with the living ranks. Returns the time at which the rounds can go on.
    pub(super) fn recover(&mut self) -> Result<Time> {
        self.end_what_has_ended()?;
        self.words.clear();
        loop {
            let (rebuilt, places) = self.comm.rebuild_apart()?;
            self.members = (places.iter())
                .map(|&place| self.members[place as usize])
                .collect();
            self.driving = rebuilt.driving()?.clone();
            self.comm = rebuilt;
            match self.go_on() {
                Err(error) if is_death(&error) => {}
                Err(error) => return Err(error),
                Ok(now) => return Ok(now),
            }
        }
    }

    /// Ends the rounds that have ended well on this rank: their results count, even if the rounds
    /// have failed on other ranks. Drops the other rounds under way, which are repeated.
    fn end_what_has_ended(&mut self) -> Result<()> {
        {
            let mut engine = self.driving.engine();
            for flight in &mut self.flights {
                flight.look(&mut engine);
            }
        }
        while (self.flights.front()).is_some_and(|flight| flight.has_ended_well()) {
            self.end_front()?;
        }
        self.flights.clear();
        Ok(())
    }

    fn go_on(&mut self) -> Result<Time> {
        let words = self.comm.gather_words(&self.machine.standing().emit())?;
        let standings: Vec<Standing> = words
            .chunks_exact(STANDING_WORDS)
            .map(|own| Standing::parse(std::array::from_fn(|i| own[i])))
            .collect();
        let recovery = Recovery::of(&self.members, &standings, self.machine.options())?;
        for round in recovery.fetches() {
            self.fetch(round, recovery.source())?;
        }
        let driving = self.driving.clone();
        driving.engine().open_notices()?;
        let now = driving.clock.now();
        self.machine.handle_survived(&recovery, now);
        self.moved_at = now;
        Ok(now)
    }

    /// Broadcasts the result and the report of a round from a rank that has them to those that lack
    /// them.
    fn fetch(&mut self, round: u64, source: Rank) -> Result<()> {
        let root = (self.members.binary_search(&source)).expect("it lives") as Rank;
        let words = RawBuffer::plain(8 * self.machine.round_words())?;
        if let Some(said) = self.machine.emit_round(round) {
            words.write(0, &said);
        }
        let place = self.machine.place_of(round).ok_or_else(|| {
            Error::Malformed(format!(
                "rank {source} completed round {round} of a partial allreduce, which had not begun here: {:?}",
                self.machine.standing()
            ))
        })?;
        let count = self.machine.round_words() as u64;
        let of_words = Call::new(Collective::Broadcast, DataType::U64, count);
        for call in [of_words.with(&words, &words), self.memory.fetch_call(place)] {
            self.comm.run(&Call { root, ..call })?;
        }
        if self.machine.completed() == round {
            let (settled, _) = self.machine.handle_fetched(&words.to_vec::<u64>())?;
            self.settle(settled, place);
        }
        Ok(())
    }
}
