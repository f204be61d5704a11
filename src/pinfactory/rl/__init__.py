"""Reinforcement learning: environments, rollouts, advantages and the agent."""
