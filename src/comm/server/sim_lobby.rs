//! Conversations in virtual time, between servers and processes that take places of workers.

use super::door::{Accepts, Over, Talk};
use super::*;
use crate::bootstrap::Message;
use crate::types::Rank;
use crate::wait::Clock;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::{Rc, Weak};

/// One side of a conversation.
pub struct End {
    line: Rc<RefCell<Line>>,
    side: usize,
}

#[derive(Default)]
struct Line {
    /// What each side has not heard yet.
    unheard: [VecDeque<Message>; 2],
    has_ended: bool,
}

impl Talk for End {
    fn hear(&mut self) -> std::result::Result<Option<Message>, Over> {
        let mut line = self.line.borrow_mut();
        match line.unheard[self.side].pop_front() {
            None if line.has_ended => Err(Over),
            message => Ok(message),
        }
    }

    fn say(&mut self, message: &Message) {
        self.line.borrow_mut().unheard[1 - self.side].push_back(message.clone());
    }
}

impl Drop for End {
    fn drop(&mut self) {
        self.line.borrow_mut().has_ended = true;
    }
}

/// Where a server hears that somebody has come.
#[derive(Default)]
pub struct Lobby(Rc<RefCell<Vec<End>>>);

impl Accepts for Lobby {
    type Talk = End;

    fn accept(&mut self, most: usize, _: &Clock) -> Result<Vec<End>> {
        let mut came = self.0.borrow_mut();
        let count = came.len().min(most);
        Ok(came.drain(..count).collect())
    }
}

/// The lobbies of the servers, by rank, as long as their doors are open.
#[derive(Default)]
pub struct Lobbies(Vec<Weak<RefCell<Vec<End>>>>);

impl Lobbies {
    /// That of the next rank.
    pub fn open(&mut self) -> Lobby {
        let lobby = Lobby::default();
        self.0.push(Rc::downgrade(&lobby.0));
        lobby
    }

    pub fn visit(&self, server: Rank) -> Option<End> {
        let lobby = self.0[server as usize].upgrade()?;
        let line = Rc::new(RefCell::new(Line::default()));
        let end = |side| End {
            line: line.clone(),
            side,
        };
        lobby.borrow_mut().push(end(1));
        Some(end(0))
    }
}
