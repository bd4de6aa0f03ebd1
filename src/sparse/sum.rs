//! The sum of sparse vectors from left to right: dense over a window of coordinates that nearly
//! fits the first-level cache.
//!
//! A window costs what lies in it and a look at each 64 coordinates; windows without entries cost
//! nothing. Merging one vector after another into the sum would touch the sum once for each of
//! them.

use super::coding::Incoming;
use super::entries::{Arrival, Coded, Entries, Term};
use super::spare::Spare;
use super::stream::Stream;
use super::window::WINDOW;

/// See [`super::Entries::sum`].
pub(super) fn sum(terms: &[Term<Stream>], spare: &Spare) -> Result<Stream, (usize, String)> {
    let mut cursors = Vec::with_capacity(terms.len());
    let mut most = 0;
    for (number, term) in terms.iter().enumerate() {
        let cursor = Cursor::of(term).map_err(|cause| (number, cause))?;
        most += cursor.len();
        if cursor.len() > 0 {
            cursors.push((number, cursor));
        }
    }
    // Room that is not needed is never touched.
    let mut total = spare.stream(most);
    if let [(number, only)] = &cursors[..] {
        only.copy_onto(&mut total)
            .map_err(|cause| (*number, cause))?;
        return Ok(total);
    }
    let mut window = spare.window();
    let first = |(_, cursor): &(usize, Cursor)| cursor.ahead().0.first().copied();
    while let Some(base) = cursors.iter().filter_map(first).min() {
        let end = base.saturating_add(WINDOW as u64);
        for (number, cursor) in &mut cursors {
            loop {
                let (indices, values) = cursor.ahead();
                let (there, count) = (indices.len(), window.add((base, end), indices, values));
                cursor.advance(count).map_err(|cause| (*number, cause))?;
                if count < there || there == 0 {
                    break;
                }
            }
        }
        window.take(base, &mut total);
    }
    spare.keep_window(window);
    Ok(total)
}

/// What is yet to be added of a term.
enum Cursor<'a> {
    Here(&'a [u64], &'a [f32]),
    Come(Arrival<'a>, Box<Incoming<'a>>),
}

impl<'a> Cursor<'a> {
    fn of(term: &Term<'a, Stream>) -> Result<Cursor<'a>, String> {
        Ok(match term {
            Term::Here(stream, (from, to)) => {
                let range = stream.below(*from) as usize..stream.below(*to) as usize;
                Cursor::Here(&stream.indices[range.clone()], &stream.values[range])
            }
            Term::Come(arrival) => Cursor::Come(*arrival, Box::new(Incoming::new(*arrival)?)),
        })
    }

    /// Number of entries, before any of them was added.
    fn len(&self) -> usize {
        match self {
            Cursor::Here(indices, _) => indices.len(),
            Cursor::Come(arrival, _) => arrival.count as usize,
        }
    }

    fn copy_onto(&self, total: &mut Stream) -> Result<(), String> {
        match self {
            Cursor::Here(indices, values) => {
                total.extend(indices, values);
                Ok(())
            }
            Cursor::Come(arrival, _) => total.decode_onto(*arrival),
        }
    }

    /// The next entries; none at the end.
    fn ahead(&self) -> (&[u64], &[f32]) {
        match self {
            Cursor::Here(indices, values) => (indices, values),
            Cursor::Come(_, incoming) => incoming.ahead(),
        }
    }

    /// This many of them have been added.
    fn advance(&mut self, count: usize) -> Result<(), String> {
        match self {
            Cursor::Here(indices, values) => {
                (*indices, *values) = (&indices[count..], &values[count..]);
                Ok(())
            }
            Cursor::Come(_, incoming) => incoming.advance(count),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prng::Prng;
    use crate::sparse::ValueFormat;
    use crate::sparse::entries::Pack;

    fn stream(count: usize, below: u64, seed: u64) -> Stream {
        let mut prng = Prng::new(seed);
        let mut indices: Vec<u64> = (0..count).map(|_| prng.below(below)).collect();
        indices.sort_unstable();
        indices.dedup();
        let values = indices.iter().map(|_| prng.below(7) as f32 - 3.5);
        Stream {
            values: values.collect(),
            indices,
        }
    }

    #[test]
    fn messages_are_added_as_what_is_decoded_from_them() {
        let spare = Spare::default();
        for (counts, below) in [
            ([700, 0, 2000], 9_000),
            ([257, 256, 1], 1 << 20),
            ([0, 0, 513], 600),
            ([0, 0, 0], 10),
        ] {
            for values in [ValueFormat::F32, ValueFormat::Bf16, ValueFormat::I8] {
                for is_wide in [false, true] {
                    let pack = Pack { values, is_wide };
                    let parts: Vec<Stream> = (1..)
                        .zip(counts)
                        .map(|(seed, count)| stream(count, below, seed))
                        .collect();
                    let messages: Vec<_> = parts.iter().map(|part| part.encode(pack)).collect();
                    let arrival = |at: usize| Arrival {
                        message: &messages[at],
                        count: parts[at].len(),
                        pack,
                        range: (0, below),
                    };
                    let decoded: Vec<Stream> = (0..3)
                        .map(|at| Stream::decode(arrival(at), &spare).unwrap())
                        .collect();
                    let come: Vec<Term<Stream>> =
                        (0..3).map(|at| Term::Come(arrival(at))).collect();
                    let sum = Stream::sum(&come, &spare).unwrap();
                    assert_eq!(sum, Stream::sum_of(&decoded, &spare), "{counts:?} {pack:?}");
                    assert_eq!(sum.len() == 0, counts == [0; 3]);
                }
            }
        }
    }

    #[test]
    fn a_malformed_message_is_named_wherever_it_is_wrong() {
        let (spare, range) = (Spare::default(), (10, 5000));
        let pack = Pack {
            values: ValueFormat::F32,
            is_wide: false,
        };
        let good = Stream {
            indices: (10..1010).collect(),
            values: vec![1.0; 1000],
        };
        let fault = |change: fn(&mut Stream)| {
            let mut bad = good.clone();
            change(&mut bad);
            let message = bad.encode(pack);
            let arrival = Arrival {
                message: &message,
                count: bad.len(),
                pack,
                range,
            };
            let terms = [Term::Here(&good, range), Term::Come(arrival)];
            Stream::sum(&terms, &spare).map(|_| ())
        };
        assert_eq!(fault(|_| ()), Ok(()));
        // At the beginning, inside a batch, where one ends, and at the end.
        let (number, cause) = fault(|bad| bad.indices[0] = 9).unwrap_err();
        assert!(
            number == 1 && cause.contains("index 9 outside of 10..5000"),
            "{cause}"
        );
        let changes: [fn(&mut Stream); 3] = [
            |bad| bad.indices[100] = 5,
            |bad| bad.indices[256] = 265,
            |bad| bad.indices[999] = 5000,
        ];
        for change in changes {
            assert_eq!(fault(change).unwrap_err().0, 1);
        }
        // What went wrong before has left nothing behind.
        let twice = Stream::sum_of(&[good.clone(), good.clone()], &spare);
        assert_eq!(twice.values, vec![2.0; 1000]);
    }

    #[test]
    fn sums_that_are_zero_are_left_out_and_what_is_not_finite_is_not() {
        let part = |values: [f32; 4]| Stream {
            indices: vec![1, 2, 70, 9000],
            values: values.to_vec(),
        };
        let parts = [
            part([1.0, 2.0, f32::INFINITY, -3.0]),
            part([-1.0, 1.0, f32::NEG_INFINITY, 3.0]),
        ];
        let sum = Stream::sum_of(&parts, &Spare::default());
        assert_eq!(sum.indices, [2, 70]);
        assert!(sum.values[0] == 3.0 && sum.values[1].is_nan());
    }
}
