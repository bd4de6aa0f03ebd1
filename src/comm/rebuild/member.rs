//! What a survivor that does not lead does: it follows the leader.

use super::Survivor;
use crate::bootstrap::{Conversation, Message};
use crate::error::{Error, Result};
use crate::types::Rank;
use std::time::Duration;

/// How long a member waits beyond its own deadline for the answer of the leader: a leader that
/// gives up says which ranks are missing.
const ANSWER_TIME: Duration = Duration::from_secs(2);

/// What the leader has said.
enum Heard {
    Nothing,
    Commit,
    Lost,
}

impl Survivor<'_> {
    /// Follows a leader. Returns true if it has committed, false if the leader was lost.
    pub(super) fn follow(&mut self, leader: Rank) -> Result<bool> {
        let mut conversation = loop {
            if let Some(conversation) = self.reunion.visit(leader, self.clock())? {
                break conversation;
            }
            if self.look() {
                return Ok(true);
            }
            if self.leader() != leader {
                return Ok(false);
            }
            if self.is_late() {
                return Err(self.timeout(vec![leader]));
            }
        };
        conversation.say(&Message::Come(self.old.rank()));
        let (mut missing, mut ended) = (Vec::new(), Vec::new());
        let last = self.deadline.after(ANSWER_TIME);
        loop {
            match self.hear_leader(&mut conversation, &mut missing)? {
                Heard::Commit => return Ok(true),
                // The leader may have died after some members had committed; then one of those has
                // confirmed it.
                Heard::Lost => return Ok(self.look()),
                Heard::Nothing => {}
            }
            let known = self.ended();
            if known != ended {
                conversation.say(&Message::Ended(known.clone()));
                ended = known;
            }
            match self.go_on_connecting() {
                Ok(true) => conversation.say(&Message::Connected(self.round)),
                Ok(false) => {}
                Err(_) => conversation.say(&Message::Lost(self.round)),
            }
            if self.look() {
                return Ok(true);
            }
            if self.clock().now() > last {
                return Err(self.timeout(missing));
            }
        }
    }

    fn hear_leader(
        &mut self,
        conversation: &mut Conversation,
        missing: &mut Vec<Rank>,
    ) -> Result<Heard> {
        loop {
            let message = match conversation.hear() {
                Ok(Some(message)) => message,
                Ok(None) => return Ok(Heard::Nothing),
                Err(_) => return Ok(Heard::Lost),
            };
            match message {
                Message::Missing(ranks) => *missing = ranks,
                Message::Members(round, members) => {
                    self.round = round;
                    match self.stand(members) {
                        Ok(contact) => conversation.say(&Message::Contact(round, contact)),
                        Err(error) => {
                            conversation.say(&Message::Refused(error.to_string()));
                            return Err(error);
                        }
                    }
                }
                Message::Contacts(round, contacts) if round == self.round => {
                    if let Err(error) = self.meet(&contacts) {
                        conversation.say(&Message::Refused(error.to_string()));
                        return Err(error);
                    }
                }
                // Valid only in a round in which this rank has said that it is connected.
                Message::Commit(_) if self.candidate.as_ref().is_some_and(|c| c.is_connected) => {
                    return Ok(Heard::Commit);
                }
                Message::GaveUp => return Err(self.timeout(std::mem::take(missing))),
                Message::Refused(text) => {
                    let reason = text.trim_start_matches("bootstrap: ");
                    return Err(Error::Bootstrap(reason.into()));
                }
                other => {
                    return Err(Error::Malformed(format!(
                        "the leader of a rebuild said {other:?}"
                    )));
                }
            }
        }
    }
}
