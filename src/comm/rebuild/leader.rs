//! What the leader of a rebuild does. It is the lowest surviving rank.

use super::Survivor;
use crate::bootstrap::{Conversation, MeetingPlace, Message};
use crate::error::{Error, Result};
use crate::types::Rank;
use crate::wait::Clock;

/// The most connections whose peers have not yet said which rank they are. Beyond it, the oldest
/// ones are closed.
const STRANGERS_MAX: usize = 256;

/// The stage of a rebuild, as its leader sees it. A stage keeps what each member has said in it, in
/// the order of the members.
pub(super) enum Stage {
    /// Waits until every old rank has come or is gone.
    Gathering,
    /// Waits for the contacts of the members.
    Contacts(Vec<Option<Vec<u8>>>),
    /// Waits until all members are connected.
    Connecting(Vec<bool>),
}

pub(super) struct Leader {
    place: MeetingPlace,
    strangers: Vec<Conversation>,
    /// By old rank: the conversation with a rank that has come.
    pub(super) came: Vec<Option<Conversation>>,
    pub(super) stage: Stage,
    members: Vec<Rank>,
    missing: Vec<Rank>,
    /// By old rank: whether a member has said that the rank has ended.
    ended: Vec<bool>,
    /// Why no round begins although every old rank has come or is gone.
    doubt: Option<Error>,
}

impl Survivor<'_> {
    /// Leads until all members have committed. It also ends if they had committed under an earlier
    /// leader, which died before this rank heard of it.
    pub(super) fn lead(&mut self) -> Result<()> {
        let place = self.reunion.open()?;
        let mut leader = Leader::new(place, self.old.ranks());
        loop {
            if self.look() {
                // The others find the confirmation as this rank did, because they look for it once
                // they lose their leader.
                return Ok(());
            }
            if leader.greet(self.clock())? {
                self.begin_again(&mut leader);
            }
            let led = self
                .hear_members(&mut leader)
                .and_then(|()| self.go_on(&mut leader));
            match led {
                Ok(true) => return Ok(()),
                Ok(false) => {}
                Err(error) => {
                    leader.say_to_all(&Message::Refused(error.to_string()));
                    return Err(error);
                }
            }
            if self.is_late() {
                if let Some(doubt) = leader.doubt.take() {
                    leader.say_to_all(&Message::Refused(doubt.to_string()));
                    return Err(doubt);
                }
                let missing = leader.awaited();
                leader.say_to_all(&Message::Missing(missing.clone()));
                leader.say_to_all(&Message::GaveUp);
                return Err(self.timeout(missing));
            }
        }
    }

    pub(super) fn hear_members(&mut self, leader: &mut Leader) -> Result<()> {
        for rank in 0..leader.came.len() {
            while let Some(conversation) = &mut leader.came[rank] {
                match conversation.hear() {
                    Ok(None) => break,
                    Ok(Some(message)) => self.take(leader, rank as Rank, message)?,
                    Err(_) => {
                        // The member died, or it gave up and may come again.
                        leader.came[rank] = None;
                        self.begin_again(leader);
                    }
                }
            }
        }
        Ok(())
    }

    fn take(&mut self, leader: &mut Leader, rank: Rank, message: Message) -> Result<()> {
        let place = leader.members.iter().position(|&member| member == rank);
        match (message, &mut leader.stage, place) {
            // Messages of a round that was given up are ignored.
            (Message::Contact(round, _) | Message::Connected(round) | Message::Lost(round), ..)
                if round != self.round => {}
            (Message::Contact(_, contact), Stage::Contacts(contacts), Some(place)) => {
                contacts[place] = Some(contact);
            }
            (Message::Connected(_), Stage::Connecting(connected), Some(place)) => {
                connected[place] = true;
            }
            (Message::Lost(_), ..) => self.begin_again(leader),
            // This round was given up, and the next one has not begun.
            (Message::Contact(..) | Message::Connected(_), ..) => {}
            (Message::Refused(text), ..) => {
                let text = format!("rank {rank} could not take part in a rebuild: {text}");
                return Err(Error::Bootstrap(text));
            }
            (Message::Ended(ranks), ..) if ranks.iter().all(|&r| r < self.old.ranks()) => {
                for rank in ranks {
                    leader.ended[rank as usize] = true;
                }
            }
            (other, ..) => {
                let text = format!("rank {rank} said {other:?} to the leader of a rebuild");
                return Err(Error::Malformed(text));
            }
        }
        Ok(())
    }

    fn begin_again(&mut self, leader: &mut Leader) {
        if !matches!(leader.stage, Stage::Gathering) {
            leader.stage = Stage::Gathering;
            self.candidate = None;
        }
    }

    /// Does what the stage allows. Returns true when it has committed.
    pub(super) fn go_on(&mut self, leader: &mut Leader) -> Result<bool> {
        let own = self.old.rank();
        match &mut leader.stage {
            Stage::Gathering => {
                let is_missing =
                    |&r: &Rank| r != own && leader.came[r as usize].is_none() && !self.is_gone(r);
                let missing: Vec<Rank> = (0..self.old.ranks()).filter(is_missing).collect();
                if missing.is_empty() {
                    return self.begin_round(leader).map(|()| false);
                }
                leader.doubt = None;
                if missing != leader.missing {
                    leader.missing = missing;
                    let message = Message::Missing(leader.missing.clone());
                    leader.say_to_all(&message);
                }
            }
            Stage::Contacts(contacts) => {
                if contacts.iter().all(Option::is_some) {
                    let contacts: Vec<Vec<u8>> = contacts.drain(..).flatten().collect();
                    leader.stage = Stage::Connecting(vec![false; leader.members.len()]);
                    leader.say_to_members(&Message::Contacts(self.round, contacts.clone()));
                    self.meet(&contacts)?;
                }
            }
            Stage::Connecting(connected) => {
                match self.go_on_connecting() {
                    Ok(true) => {
                        let place = leader.members.iter().position(|&member| member == own);
                        connected[place.expect("a leader is a member")] = true;
                    }
                    Ok(false) => {}
                    Err(_) => {
                        self.begin_again(leader);
                        return Ok(false);
                    }
                }
                if connected.iter().all(|&is_connected| is_connected) {
                    leader.say_to_members(&Message::Commit(self.round));
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// Begins a round, since every old rank has come or is gone. But first it looks whether a rank
    /// that is gone had committed and said so before it left.
    fn begin_round(&mut self, leader: &mut Leader) -> Result<()> {
        if self.is_confirmed() {
            return Ok(()); // The next look finds it.
        }
        let own = self.old.rank();
        let is_member = |&r: &Rank| r == own || leader.came[r as usize].is_some();
        leader.members = (0..self.old.ranks()).filter(is_member).collect();
        leader.missing.clear();
        leader.doubt = self.check_alone(&leader.members, &leader.ended)?;
        if leader.doubt.is_some() {
            return Ok(());
        }
        self.round += 1;
        let contact = self.stand(leader.members.clone())?;
        let contacts = leader.members.iter();
        let contacts = contacts.map(|&member| (member == own).then(|| contact.clone()));
        leader.stage = Stage::Contacts(contacts.collect());
        leader.say_to_members(&Message::Members(self.round, leader.members.clone()));
        Ok(())
    }
}

impl Leader {
    /// The leader of the survivors of a communicator of `ranks` ranks.
    pub(super) fn new(place: MeetingPlace, ranks: u32) -> Leader {
        Leader {
            place,
            strangers: Vec::new(),
            came: (0..ranks).map(|_| None).collect(),
            stage: Stage::Gathering,
            members: Vec::new(),
            missing: Vec::new(),
            ended: vec![false; ranks as usize],
            doubt: None,
        }
    }

    /// Accepts connections, and takes in those whose peers have said which rank they are. Returns
    /// true if a rank came again: it has given up what its first conversation was about.
    pub(super) fn greet(&mut self, clock: &Clock) -> Result<bool> {
        let room = STRANGERS_MAX - self.strangers.len();
        self.strangers.extend(self.place.accept(room, clock)?);
        let (mut index, mut came_again) = (0, false);
        while index < self.strangers.len() {
            match self.strangers[index].hear() {
                Ok(None) => index += 1,
                Ok(Some(Message::Come(rank))) if (rank as usize) < self.came.len() => {
                    let mut conversation = self.strangers.remove(index);
                    conversation.say(&Message::Missing(self.missing.clone()));
                    came_again |= self.came[rank as usize].replace(conversation).is_some();
                }
                _ => drop(self.strangers.remove(index)),
            }
        }
        if self.strangers.len() >= STRANGERS_MAX {
            self.strangers
                .drain(..=self.strangers.len() - STRANGERS_MAX);
        }
        Ok(came_again)
    }

    /// The old ranks for which the current stage waits.
    fn awaited(&self) -> Vec<Rank> {
        let heard: Vec<bool> = match &self.stage {
            Stage::Gathering => return self.missing.clone(),
            Stage::Contacts(contacts) => contacts.iter().map(Option::is_some).collect(),
            Stage::Connecting(connected) => connected.clone(),
        };
        let members = self.members.iter().zip(heard);
        let silent = members.filter_map(|(&rank, is_heard)| (!is_heard).then_some(rank));
        silent.collect()
    }

    fn say_to_members(&mut self, message: &Message) {
        for &member in &self.members {
            if let Some(conversation) = &mut self.came[member as usize] {
                conversation.say(message);
            }
        }
    }

    fn say_to_all(&mut self, message: &Message) {
        self.came
            .iter_mut()
            .flatten()
            .for_each(|conversation| conversation.say(message));
    }
}
