//! `linerate experiment`: reproduces tables and figures of the papers whose methods are here.

#![allow(dead_code)]
mod digits;
mod load;
mod model;
mod plot;
