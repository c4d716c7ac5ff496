//! The jails of QEMU and of the shim: what their layers keep out, and that they are there.
//!
//! See `pando_e2e::jail` for how it is done.

mod described;
mod matrix;
mod stage;

use pando_e2e::jail::Role;
use stage::Stage;

/// An account that nothing belongs to.
const SOMEBODY: u32 = 4242;

#[test]
fn as_root_each_layer_stops_what_it_is_there_for() {
    let stage = Stage::new(None);
    described::layers_are_true(&stage);
    matrix::each_layer_stops_what_it_is_there_for(&stage, Role::Qemu);
    matrix::each_layer_stops_what_it_is_there_for(&stage, Role::Shim);
}

#[test]
fn as_an_ordinary_user_each_layer_stops_what_it_is_there_for() {
    let stage = Stage::new(Some(SOMEBODY));
    described::layers_are_true(&stage);
    matrix::each_layer_stops_what_it_is_there_for(&stage, Role::Qemu);
    matrix::each_layer_stops_what_it_is_there_for(&stage, Role::Shim);
}

#[test]
fn the_table_in_security_md_is_the_one_that_is_tried() {
    described::table_is_written_down();
}
