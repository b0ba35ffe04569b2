"""Plans of products that pass through a device: candidates, schedules, simulation and measured rates."""
