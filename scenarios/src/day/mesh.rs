//! Agents as processes on loopback that serve the stores of a day, asked through the command line.
