"""Learning systems that divide labour: a selector, simple experts, and a price on information."""
