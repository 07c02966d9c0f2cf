//! The tables of `docs/devices.md` are made by commands, and are those that the commands make now.

#[path = "../../examples/policies.rs"]
#[allow(dead_code, reason = "its main is not called here")]
mod command;

#[test]
fn the_table_of_policies_is_the_one_that_the_command_prints() {
    let page = include_str!("../../docs/devices.md");
    let (_, rest) = page.split_once("<!-- policies -->\n").unwrap();
    let (table, _) = rest.split_once("<!-- /policies -->").unwrap();
    assert_eq!(table, command::table().unwrap());
}
