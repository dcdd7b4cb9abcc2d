"""The root without I/O: what Spark (cloud_job/) and numpy share.

completeness         which frames took effect, and how complete every group is: `Decider`
agreed_servings      which windows each group serves; leaves_behind: leaves behind the frontier of their group
served_before        from when leaves served a query, where they state a later start now
bounds               limits on the state that children can make the root keep
lost_frames          frames that the lander received but no landing file contains
elapsed_time         how much time has passed, whatever the lander's clock says
revision_handover    which revision of a query each window belongs to
decision/            what closes, is revised or is too late: a `Work`
punctuation_state    which windows between markers close; punctuation_windows: their members and coverage;
                     window_numbers: their numbers among those of all nodes
positions            one order for the readings of all nodes, and the windows of positions
books                checks that no reading was lost without a record or counted twice: `headwater audit`
instant_slices       raw readings as slices of 1 us
work_rows            from partials to the rows that a `Work` asks for
numpy/               executes a `Work` on rows in memory: replay, simulate, simulation
"""
