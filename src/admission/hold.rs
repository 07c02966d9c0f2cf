//! CONNECTs that wait for their turn.
