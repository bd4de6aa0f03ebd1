//! [`Digits`]: images of hand-written digits (tests/data/optdigits), a fifth of them kept for the
//! test; [`Share`]: the images of one rank.

use linerate::unstable::prng::{Prng, mix};

const CSV: &str = include_str!("../../../tests/data/optdigits/digits.csv");

/// Pixels of an image.
pub const PIXELS: usize = 64;
/// Digits.
pub const CLASSES: usize = 10;
/// The brightest pixel of the data.
const BRIGHTEST: f32 = 16.0;
/// One image of this many is kept for the test.
const TEST_SHARE: usize = 5;
/// Seed of the split into the two parts, which all experiments share.
const SPLIT_SEED: u64 = 0x6f70_7464;

/// One image, pixels from 0 to 1, and what it shows.
#[derive(Clone, Debug)]
pub struct Image {
    pub pixels: [f32; PIXELS],
    pub digit: usize,
}

/// The two parts of the data.
#[derive(Debug)]
pub struct Digits {
    pub training: Vec<Image>,
    pub test: Vec<Image>,
}

impl Digits {
    /// The data in the binary.
    pub fn load() -> Digits {
        let mut images: Vec<Image> = CSV.lines().map(parse_line).collect();
        shuffle(&mut images, &mut Prng::new(SPLIT_SEED));
        let test = images.split_off(images.len() - images.len() / TEST_SHARE);
        Digits {
            training: images,
            test,
        }
    }
}

/// Brings values into an order that a generator decides.
pub fn shuffle<T>(values: &mut [T], prng: &mut Prng) {
    for end in (1..values.len()).rev() {
        values.swap(end, prng.below(end as u64 + 1) as usize);
    }
}

/// A rank's part of the images that are trained with, and all images of the test.
#[derive(Debug)]
pub struct Share {
    digits: Digits,
    /// This rank's images, in the order of an epoch.
    own: Vec<usize>,
}

impl Share {
    /// Every `ranks`-th image, beginning with the rank's own, in an order that the seed decides.
    pub fn new((rank, ranks): (u32, u32), seed: u64) -> Share {
        let digits = Digits::load();
        let mine = (0..digits.training.len()).filter(|i| *i as u32 % ranks == rank);
        let mut own: Vec<usize> = mine.collect();
        let mut prng = Prng::new(mix(seed ^ mix(u64::from(rank) + 1)));
        shuffle(&mut own, &mut prng);
        Share { digits, own }
    }

    /// The images of a step's batch.
    pub fn batch(&self, step: u32, count: usize) -> Vec<&Image> {
        let place = |i| self.own[(step as usize * count + i) % self.own.len()];
        (0..count)
            .map(|i| &self.digits.training[place(i)])
            .collect()
    }

    /// The images of the test.
    pub fn test(&self) -> &[Image] {
        &self.digits.test
    }
}

fn parse_line(line: &str) -> Image {
    let mut values = line.split(',').map(|value| {
        let value: u8 = value.parse().expect("digits.csv holds small numbers");
        value
    });
    let mut pixels = [0.0; PIXELS];
    for pixel in &mut pixels {
        *pixel = f32::from(values.next().expect("64 pixels")) / BRIGHTEST;
    }
    Image {
        pixels,
        digit: usize::from(values.next().expect("a digit")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_image_is_in_one_part() {
        let digits = Digits::load();
        assert_eq!((digits.training.len(), digits.test.len()), (1438, 359));
        // The published counts of each digit.
        let mut counts = [0; CLASSES];
        for image in digits.training.iter().chain(&digits.test) {
            counts[image.digit] += 1;
            assert!(image.pixels.iter().all(|p| (0.0..=1.0).contains(p)));
        }
        assert_eq!(counts, [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]);
    }

    #[test]
    fn a_shuffle_keeps_every_value() {
        let mut values: Vec<u32> = (0..100).collect();
        shuffle(&mut values, &mut Prng::new(1));
        assert!(values.windows(2).any(|pair| pair[0] > pair[1]));
        values.sort_unstable();
        assert_eq!(values, Vec::from_iter(0..100));
    }
}
