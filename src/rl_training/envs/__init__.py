"""Environments: making them, describing their spaces, and stepping many of them with exact, repeatable resets."""
