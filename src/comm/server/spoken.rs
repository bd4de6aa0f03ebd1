//! [`Spoken`]: what a process that comes later and the servers say to each other.

use crate::bootstrap::Message;
use crate::comm::window::Part;

/// See the module.
#[derive(Debug)]
pub enum Spoken {
    /// To a leader, first of all: a process wants the place of a worker, with tensors and options
    /// that these words describe.
    Ask(String),
    /// Not now, and why.
    Later(String),
    Place(Place),
    /// To each server: a process has got a place.
    Come(Arrival),
    /// To each server: its memory is made known to that server.
    Here,
}

/// A place of a worker, and how the servers are reached.
#[derive(Debug)]
pub struct Place {
    /// The number of the worker, and how often this place was given away.
    pub worker: u32,
    pub count: u64,
    /// Ranks at the beginning.
    pub ranks: u32,
    /// A function updates the weights.
    pub has_function: bool,
    pub transport: String,
    /// By rank; empty: it is not known, or that server has ended.
    pub contacts: Vec<Vec<u8>>,
    /// By rank: its parts of the two windows.
    pub parts: Vec<[Part; 2]>,
}

/// A process that comes.
#[derive(Clone, Debug)]
pub struct Arrival {
    pub worker: u32,
    pub count: u64,
    pub contact: Vec<u8>,
    pub parts: [Part; 2],
}

const ASK: u32 = 1;
const LATER: u32 = 2;
const PLACE: u32 = 3;
const COME: u32 = 4;
const HERE: u32 = 5;

/// Words of the two parts of a rank.
const PART_WORDS: usize = 6;

/// The two parts of a rank as bytes.
pub fn emit_parts(parts: &[Part; 2]) -> Vec<u8> {
    bytes_of(&part_words(parts))
}

/// The two parts of a rank, of their bytes.
pub fn parse_parts(bytes: &[u8]) -> Option<[Part; 2]> {
    parts_of_words(&words_of(bytes)?)
}

fn part_words(parts: &[Part; 2]) -> [u64; PART_WORDS] {
    let [data, words] = parts.map(|part| part.emit());
    std::array::from_fn(|at| if at < 3 { data[at] } else { words[at - 3] })
}

fn parts_of_words(words: &[u64]) -> Option<[Part; 2]> {
    let &[a, b, c, d, e, f] = words else {
        return None;
    };
    Some([Part::parse([a, b, c]), Part::parse([d, e, f])])
}

fn bytes_of(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn words_of(bytes: &[u8]) -> Option<Vec<u64>> {
    let words = bytes.chunks_exact(8);
    let is_whole = words.remainder().is_empty();
    let word = |word: &[u8]| u64::from_le_bytes(std::array::from_fn(|at| word[at]));
    is_whole.then(|| words.map(word).collect())
}

impl Spoken {
    pub fn emit(&self) -> Message {
        match self {
            Spoken::Ask(text) => Message::Parts(ASK, vec![text.clone().into_bytes()]),
            Spoken::Later(text) => Message::Parts(LATER, vec![text.clone().into_bytes()]),
            Spoken::Place(place) => {
                let numbers = [
                    u64::from(place.worker),
                    place.count,
                    u64::from(place.ranks),
                    u64::from(place.has_function),
                ];
                let windows = place.parts.iter().flat_map(part_words);
                let windows: Vec<u64> = windows.collect();
                let mut parts = vec![
                    bytes_of(&numbers),
                    place.transport.clone().into_bytes(),
                    bytes_of(&windows),
                ];
                parts.extend_from_slice(&place.contacts);
                Message::Parts(PLACE, parts)
            }
            Spoken::Come(arrival) => {
                let mut numbers = vec![u64::from(arrival.worker), arrival.count];
                numbers.extend(part_words(&arrival.parts));
                Message::Parts(COME, vec![bytes_of(&numbers), arrival.contact.clone()])
            }
            Spoken::Here => Message::Parts(HERE, Vec::new()),
        }
    }

    /// `None`: nobody says that.
    pub fn parse(message: &Message) -> Option<Spoken> {
        let Message::Parts(kind, parts) = message else {
            return None;
        };
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let spoken = match (*kind, &parts[..]) {
            (ASK, [asked]) => Spoken::Ask(text(asked)),
            (LATER, [why]) => Spoken::Later(text(why)),
            (PLACE, [numbers, transport, windows, contacts @ ..]) => {
                let &[worker, count, ranks, has_function] = &words_of(numbers)?[..] else {
                    return None;
                };
                let windows = words_of(windows)?;
                let parts = windows.chunks(PART_WORDS).map(parts_of_words);
                let parts = parts.collect::<Option<Vec<_>>>()?;
                if parts.len() != contacts.len() || ranks > contacts.len() as u64 {
                    return None;
                }
                Spoken::Place(Place {
                    worker: u32::try_from(worker).ok()?,
                    count,
                    ranks: u32::try_from(ranks).ok()?,
                    has_function: has_function == 1,
                    transport: text(transport),
                    contacts: contacts.to_vec(),
                    parts,
                })
            }
            (COME, [numbers, contact]) => {
                let numbers = words_of(numbers)?;
                let (&[worker, count], parts) = numbers.split_first_chunk()?;
                Spoken::Come(Arrival {
                    worker: u32::try_from(worker).ok()?,
                    count,
                    contact: contact.clone(),
                    parts: parts_of_words(parts)?,
                })
            }
            (HERE, []) => Spoken::Here,
            _ => return None,
        };
        Some(spoken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_heard_and_anything_else_is_refused() {
        let parts = [Part::parse([1, 2, 3]), Part::parse([4, 5, 6])];
        let said = [
            Spoken::Ask("tensors".into()),
            Spoken::Later("not yet".into()),
            Spoken::Place(Place {
                worker: 3,
                count: 1 << 40,
                ranks: 2,
                has_function: true,
                transport: "shm".into(),
                contacts: vec![vec![1; 9], Vec::new(), vec![2]],
                parts: vec![parts, parts, parts],
            }),
            Spoken::Come(Arrival {
                worker: 1,
                count: 2,
                contact: vec![7; 5],
                parts,
            }),
            Spoken::Here,
        ];
        for spoken in said {
            let heard = Spoken::parse(&spoken.emit()).unwrap();
            assert_eq!(format!("{heard:?}"), format!("{spoken:?}"));
        }
        let mut refused = 0;
        let mut prng = crate::prng::Prng::new(1);
        for _ in 0..20_000 {
            let part = |prng: &mut crate::prng::Prng| vec![1; prng.below(60) as usize];
            let parts = (0..prng.below(5)).map(|_| part(&mut prng)).collect();
            let message = Message::Parts(prng.below(7) as u32, parts);
            refused += u32::from(Spoken::parse(&message).is_none());
        }
        assert!(refused > 10_000, "{refused}");
        assert!(Spoken::parse(&Message::GaveUp).is_none());
    }
}
